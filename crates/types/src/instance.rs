//! Identities of engine instances, models and tenants.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::names::{INSTANCE_ID_BYTES_MAX, NameError, NameField, PRINTABLE, check_name, check_names};
use crate::schema::{integer, integer_or_text, text};

/// Id of an engine instance: an unsigned integer or a text, written as it was given.
///
/// The number 7 and the text "7" are the same instance, because both are "7" as a key of a JSON object.
#[derive(Debug, Clone)]
pub struct InstanceId {
    text: String,
    is_number: bool,
}

/// Invalid instance id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceIdError {
    /// The id is empty.
    #[error("an instance (`instance_id`, or `pod`) must not be empty: give a number or a text")]
    Empty,
    /// The id is too long, or has a control character.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl InstanceId {
    /// Creates an id from a number.
    #[must_use]
    pub fn number(number: u64) -> Self {
        Self { text: number.to_string(), is_number: true }
    }

    /// Creates an id from a text. A decimal number becomes a number.
    ///
    /// # Errors
    ///
    /// Fails if the text is empty or too long, or has a control character.
    pub fn parse(text: &str) -> Result<Self, InstanceIdError> {
        match text.parse::<u64>() {
            Ok(number) if number.to_string() == text => Ok(Self::number(number)),
            _ => Self::text(text.to_owned()),
        }
    }

    fn text(text: String) -> Result<Self, InstanceIdError> {
        if text.is_empty() {
            return Err(InstanceIdError::Empty);
        }
        check_name(NameField::InstanceId, &text)?;
        Ok(Self { text, is_number: false })
    }

    /// The id as a number; none for a text.
    #[must_use]
    pub fn as_number(&self) -> Option<u64> {
        self.text.parse().ok().filter(|_| self.is_number)
    }

    /// The id as the key of a JSON object.
    #[must_use]
    pub fn as_key(&self) -> &str {
        &self.text
    }

    /// Key of the sort order: numbers by value, before texts.
    pub fn sort_key(&self) -> (u64, &str) {
        (self.text.parse().unwrap_or(u64::MAX), &self.text)
    }
}

impl PartialEq for InstanceId {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for InstanceId {}

impl Hash for InstanceId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl PartialOrd for InstanceId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InstanceId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.sort_key().cmp(&other.sort_key())
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for InstanceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_number() {
            Some(number) => serializer.serialize_u64(number),
            None => serializer.serialize_str(&self.text),
        }
    }
}

impl<'de> Deserialize<'de> for InstanceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        UncheckedInstanceId::deserialize(deserializer)?.checked().map_err(de::Error::custom)
    }
}

/// Unchecked instance id in a request or in the shared store. Unlike a field of type [`InstanceId`], an invalid id is not an
/// error of the parser, but an [`InstanceIdError`], which can be counted and answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct UncheckedInstanceId(InstanceId);

impl UncheckedInstanceId {
    /// Checks the id.
    ///
    /// # Errors
    ///
    /// Fails if the id is empty or too long, or has a control character.
    pub fn checked(self) -> Result<InstanceId, InstanceIdError> {
        if self.0.is_number { Ok(self.0) } else { InstanceId::text(self.0.text) }
    }
}

impl From<InstanceId> for UncheckedInstanceId {
    fn from(id: InstanceId) -> Self {
        Self(id)
    }
}

impl<'de> Deserialize<'de> for UncheckedInstanceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = UncheckedInstanceId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an unsigned integer or a string as instance_id")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<UncheckedInstanceId, E> {
                Ok(UncheckedInstanceId(InstanceId::number(number)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<UncheckedInstanceId, E> {
                Ok(UncheckedInstanceId(InstanceId { text: text.to_owned(), is_number: false }))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl PartialSchema for InstanceId {
    fn schema() -> RefOr<Schema> {
        let mut name = text(PRINTABLE);
        (name.min_length, name.max_length) = (Some(1), Some(INSTANCE_ID_BYTES_MAX));
        integer_or_text("Id of an instance. 7 and \"7\" are the same instance.", integer(0), name)
    }
}

impl ToSchema for InstanceId {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("InstanceId")
    }
}

impl PartialSchema for UncheckedInstanceId {
    fn schema() -> RefOr<Schema> {
        InstanceId::schema()
    }
}

impl ToSchema for UncheckedInstanceId {
    fn name() -> Cow<'static, str> {
        InstanceId::name()
    }
}

/// Key of an index: a model of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelKey {
    /// The model.
    pub model_name: String,
    /// The tenant.
    pub tenant_id: String,
}

impl ModelKey {
    /// Tenant of requests and engines that name none.
    pub const DEFAULT_TENANT: &str = "default";

    /// Creates a key, with the default tenant if none is given.
    #[must_use]
    pub fn new(model_name: impl Into<String>, tenant_id: Option<String>) -> Self {
        let tenant_id = tenant_id.unwrap_or_else(|| Self::DEFAULT_TENANT.to_owned());
        Self { model_name: model_name.into(), tenant_id }
    }

    /// Rejects names that are too long or have control characters.
    pub fn check(&self) -> Result<(), NameError> {
        let Self { model_name, tenant_id } = self;
        check_names([(NameField::ModelName, Some(model_name)), (NameField::TenantId, Some(tenant_id))])
    }
}

impl fmt::Display for ModelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.model_name, self.tenant_id)
    }
}
