//! Model and tenant of a request.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Model and tenant of a request, under all of their field names. Values under two names of one field must be equal.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ModelScope {
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Alias of `model_name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelname: Option<String>,
    /// Alias of `model_name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The tenant; `default` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// Alias of `tenant_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_group: Option<String>,
}

/// Declares a request with a scope, and a type that reads all of its fields in one object.
///
/// `serde` reads a flattened struct from a copy of all unknown fields. Without one, an unknown field may hold anything.
macro_rules! request_with_scope {
    (
        $(#[$attribute:meta])*
        pub struct $request:ident, read as $fields:ident {
            $(
                $(#[doc = $text:literal])*
                $(#[serde($($serde:tt)*)])?
                $(#[schema($($schema:tt)*)])?
                pub $field:ident: $type:ty,
            )*
        }
    ) => {
        $(#[$attribute])*
        pub struct $request {
            $(
                $(#[doc = $text])*
                $(#[serde($($serde)*)])?
                $(#[schema($($schema)*)])?
                pub $field: $type,
            )*
            /// Model and tenant.
            #[serde(flatten)]
            pub scope: crate::ModelScope,
        }

        #[derive(serde::Deserialize)]
        #[serde(expecting = "a JSON object")]
        struct $fields {
            $($(#[serde($($serde)*)])? $field: $type,)*
            model_name: Option<String>,
            modelname: Option<String>,
            model: Option<String>,
            tenant_id: Option<String>,
            routing_group: Option<String>,
        }

        impl From<$fields> for $request {
            fn from(fields: $fields) -> Self {
                let $fields { $($field,)* model_name, modelname, model, tenant_id, routing_group } = fields;
                let scope = crate::ModelScope { model_name, modelname, model, tenant_id, routing_group };
                Self { $($field,)* scope }
            }
        }
    };
}

pub(crate) use request_with_scope;

impl ModelScope {
    /// The scope of a model, and of a tenant if it is given.
    #[must_use]
    pub fn of(model_name: &str, tenant_id: Option<&str>) -> Self {
        Self { model_name: Some(model_name.to_owned()), tenant_id: tenant_id.map(str::to_owned), ..Self::default() }
    }
}
