//! Enums in requests, which are given by their names.

use serde::de::value::StringDeserializer;
use serde::de::{Deserializer, IntoDeserializer};
use serde::{Deserialize, de::DeserializeOwned};

/// Reads an optional value that is given by its name. A value of another type is an error of the data, as for other fields;
/// `serde_json` itself reports it as an error of the syntax.
///
/// # Errors
///
/// If the value is not a text, or not such a name.
pub(crate) fn by_name<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    name.map(|name| T::deserialize::<StringDeserializer<D::Error>>(name.into_deserializer())).transpose()
}
