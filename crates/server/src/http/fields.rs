//! Fields that several requests share.

use serde::Deserialize;

use super::error::ApiError;
use flash_indexer_types::ModelKey;
use flash_indexer_types::names::{NameField, check_names, shortened};

/// The fields that say which index a request is about, by all of their names.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ModelScope {
    model_name: Option<String>,
    modelname: Option<String>,
    model: Option<String>,
    tenant_id: Option<String>,
    routing_group: Option<String>,
}

impl ModelScope {
    /// Model and tenant, as far as they are named.
    pub(crate) fn names(self) -> Result<(Option<String>, Option<String>), ApiError> {
        let model = one_of([("model_name", self.model_name), ("modelname", self.modelname), ("model", self.model)])?;
        let tenant = one_of([("tenant_id", self.tenant_id), ("routing_group", self.routing_group)])?;
        check_names([(NameField::ModelName, model.as_deref()), (NameField::TenantId, tenant.as_deref())])?;
        Ok((model, tenant))
    }

    /// The model, which must be named, and the tenant if it is.
    pub(crate) fn model_and_tenant(self) -> Result<(String, Option<String>), ApiError> {
        let (model, tenant) = self.names()?;
        let model =
            model.ok_or_else(|| ApiError::unprocessable("the request does not fit: missing field `model_name`"))?;
        match model.is_empty() {
            // A variable that was never set, most likely.
            true => Err(ApiError::unprocessable("model_name must not be empty: give the name that routers ask for")),
            false => Ok((model, tenant)),
        }
    }

    /// The index of the model that must be named, of the default tenant if none is.
    pub(crate) fn key(self) -> Result<ModelKey, ApiError> {
        let (model, tenant) = self.model_and_tenant()?;
        Ok(ModelKey::new(model, tenant))
    }
}

/// The value of a field with several names, which must agree.
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
