#![doc = "Simulated inference engines and recorded streams."]
