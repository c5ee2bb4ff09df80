//! JSON schemas of types that serialize themselves.

use utoipa::openapi::schema::{Object, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};

/// Schema of a value that is an integer or a text.
pub(crate) fn integer_or_text(description: &str) -> RefOr<Schema> {
    let any_of = OneOfBuilder::new().item(Object::with_type(Type::Integer)).item(Object::with_type(Type::String));
    any_of.description(Some(description)).into()
}
