"""SGLang's server on any x86 CPU and on a Unix socket."""
