#![doc = "Engine event formats, decoded and encoded. No I/O."]
