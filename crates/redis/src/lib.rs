//! The index that replicas share through Redis or Valkey.
