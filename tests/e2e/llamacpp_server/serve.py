"""Serves a GGUF file with llama.cpp: python serve.py FILE PORT NAME."""

import signal
import sys

import xllamacpp

parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.hostnames = ["127.0.0.1"]
parameters.port = int(sys.argv[2])
parameters.model_alias = {sys.argv[3]}
parameters.n_ctx = 4 * 2048
parameters.n_parallel = 4
# Threads of one batch wait for each other in a loop, which takes minutes on a busy CPU.
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(parameters)
signal.pause()
