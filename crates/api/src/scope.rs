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

impl ModelScope {
    /// The scope of a model, and of a tenant if it is given.
    #[must_use]
    pub fn of(model_name: &str, tenant_id: Option<&str>) -> Self {
        Self { model_name: Some(model_name.to_owned()), tenant_id: tenant_id.map(str::to_owned), ..Self::default() }
    }
}
