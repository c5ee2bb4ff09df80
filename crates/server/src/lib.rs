#![doc = "The indexing service: ZeroMQ in, HTTP out."]
