//! Request fields that several endpoints share.

use serde::Deserialize;

use super::error::ApiError;
use flash_indexer_types::ModelKey;
use flash_indexer_types::names::{NameField, check_names, shortened};

/// Model and tenant of a request, under all of their field names.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ModelScope {
    pub(super) model_name: Option<String>,
    pub(super) modelname: Option<String>,
    pub(super) model: Option<String>,
    pub(super) tenant_id: Option<String>,
    pub(super) routing_group: Option<String>,
}

impl ModelScope {
    /// Model and tenant, if given.
    pub(crate) fn names(self) -> Result<(Option<String>, Option<String>), ApiError> {
        let model = one_of([("model_name", self.model_name), ("modelname", self.modelname), ("model", self.model)])?;
        let tenant = one_of([("tenant_id", self.tenant_id), ("routing_group", self.routing_group)])?;
        check_names([(NameField::ModelName, model.as_deref()), (NameField::TenantId, tenant.as_deref())])?;
        Ok((model, tenant))
    }

    /// The model, which is required, and the tenant, if given.
    pub(crate) fn model_and_tenant(self) -> Result<(String, Option<String>), ApiError> {
        let (model, tenant) = self.names()?;
        let model =
            model.ok_or_else(|| ApiError::unprocessable("the request does not fit: missing field `model_name`"))?;
        match model.is_empty() {
            // Most likely an unset shell variable.
            true => Err(ApiError::unprocessable("model_name must not be empty: give the name that routers ask for")),
            false => Ok((model, tenant)),
        }
    }

    /// Key of the model's index. The model is required; the tenant defaults to `default`.
    pub(crate) fn key(self) -> Result<ModelKey, ApiError> {
        let (model, tenant) = self.model_and_tenant()?;
        Ok(ModelKey::new(model, tenant))
    }
}

/// Value of a field with several names. Values under different names must be equal.
fn one_of<const N: usize>(fields: [(&'static str, Option<String>); N]) -> Result<Option<String>, ApiError> {
    let mut given = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let Some((first, value)) = given.next() else { return Ok(None) };
    match given.find(|(_, other)| *other != value) {
        None => Ok(Some(value)),
        Some((second, other)) => Err(ApiError::bad_request(format!(
            "{first} {:?} and {second} {:?} are two names of one field: give one of them",
            shortened(&value),
            shortened(&other),
        ))),
    }
}
