//! Checks of request fields that several endpoints share.

use flash_indexer_access::Grant;
use flash_indexer_api::{ModelScope, StoreStatus};
use flash_indexer_registry::StoreAnswer;
use flash_indexer_types::ModelKey;
use flash_indexer_types::names::{NameField, check_names, shortened};

use super::error::ApiError;
use crate::traced::describe_model;

/// Model and tenant of a request, checked against the grant of its token.
pub(crate) trait CheckedScope: Sized {
    /// Model and tenant, if given. The tenant is permitted.
    fn selection(self, grant: &Grant) -> Result<Selection, ApiError>;

    /// The model, which is required, and the tenant, if given. A token that is bound to tenants must name one.
    fn model_and_tenant(self, grant: &Grant) -> Result<(String, Option<String>), ApiError> {
        let Selection { model, tenant } = self.selection(grant)?;
        if tenant.is_none() {
            grant.check_all_tenants()?;
        }
        Ok((required(model)?, tenant))
    }

    /// Key of the model's index. The model is required; the tenant defaults to `default`.
    fn key(self, grant: &Grant) -> Result<ModelKey, ApiError> {
        let Selection { model, tenant } = self.selection(grant)?;
        if tenant.as_deref() == Some("") {
            return Err(ApiError::unprocessable(
                "tenant_id must not be empty: give a tenant, or leave the field out for the tenant `default`",
            ));
        }
        let key = ModelKey::new(required(model)?, tenant);
        describe_model(&key);
        grant.check_tenant(&key.tenant_id)?;
        Ok(key)
    }
}

fn required(model: Option<String>) -> Result<String, ApiError> {
    let model = model.ok_or_else(|| ApiError::missing_field("`model_name`"))?;
    match model.is_empty() {
        // Most likely an unset shell variable.
        true => Err(ApiError::unprocessable("model_name must not be empty: give the name that routers ask for")),
        false => Ok(model),
    }
}

/// Models and tenants that a request selects.
pub(crate) struct Selection {
    pub(crate) model: Option<String>,
    pub(crate) tenant: Option<String>,
}

impl CheckedScope for ModelScope {
    fn selection(self, grant: &Grant) -> Result<Selection, ApiError> {
        let model = one_of([("model_name", self.model_name), ("modelname", self.modelname), ("model", self.model)])?;
        let tenant = one_of([("tenant_id", self.tenant_id), ("routing_group", self.routing_group)])?;
        check_names([(NameField::ModelName, model.as_deref()), (NameField::TenantId, tenant.as_deref())])?;
        if let Some(tenant) = &tenant {
            grant.check_tenant(tenant)?;
        }
        Ok(Selection { model, tenant })
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

/// State of the shared store in an answer; none without one.
pub(super) fn store_status(store: StoreAnswer) -> Option<StoreStatus> {
    match store {
        StoreAnswer::None => None,
        StoreAnswer::Included => Some(StoreStatus::Ok),
        StoreAnswer::Unavailable => Some(StoreStatus::Unavailable),
    }
}
