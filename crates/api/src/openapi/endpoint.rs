//! One endpoint of the OpenAPI document.

use std::collections::BTreeMap;

use utoipa::openapi::path::{HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ArrayBuilder, Object, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{Content, Ref, RefOr, Required, ResponseBuilder, Schema, SecurityRequirement};
use utoipa::{IntoParams, ToSchema};

use crate::ErrorBody;

const JSON: &str = "application/json";
const OCTET_STREAM: &str = "application/octet-stream";

/// Name of the bearer token's security scheme.
pub(super) const BEARER: &str = "bearer";

/// Schemas by name.
pub(super) type Schemas = Vec<(String, RefOr<Schema>)>;

/// Adds the schema of a type and the schemas that it refers to.
pub(super) fn add_schemas<T: ToSchema>(schemas: &mut Schemas) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

/// Condition on the fields of a JSON body. A null field counts as absent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Requirement {
    /// At least one of the fields is given.
    AnyOf(&'static [&'static str]),
    /// Exactly one of the fields is given.
    OneOf(&'static [&'static str]),
    /// The other fields are not given if the first one is.
    Excludes(&'static str, &'static [&'static str]),
    /// The field is at most this number.
    AtMost(&'static str, u64),
}

/// One endpoint of the document.
pub(super) struct Endpoint {
    pub(super) path: &'static str,
    pub(super) method: HttpMethod,
    pub(super) schemas: Vec<fn(&mut Schemas)>,
    pub(super) needs: Vec<Requirement>,
    /// Whether the body may be binary, with its other fields in the query string.
    pub(super) takes_bytes: bool,
    summary: &'static str,
    parameters: Vec<Parameter>,
    body: RequestBodyBuilder,
    takes_body: bool,
    is_open: bool,
    responses: BTreeMap<&'static str, ResponseBuilder>,
}

pub(super) fn get(path: &'static str, summary: &'static str) -> Endpoint {
    Endpoint::new(path, HttpMethod::Get, summary)
}

pub(super) fn post(path: &'static str, summary: &'static str) -> Endpoint {
    Endpoint::new(path, HttpMethod::Post, summary)
}

fn reference<T: ToSchema>() -> RefOr<Schema> {
    Ref::from_schema_name(T::name()).into()
}

/// Cause of a failure with this status.
fn failure(status: &str) -> &'static str {
    match status {
        "400" => {
            "The query string or the body cannot be parsed, contradicts itself, or has a text that is not allowed."
        }
        "401" => "The request has no bearer token, or an unknown one.",
        "403" => "The token lacks the scope of the endpoint, or does not permit the tenant.",
        "404" => "The object does not exist.",
        "408" => "The body did not arrive in time.",
        "409" => "The request contradicts the state of the service.",
        "413" => "The body is too large.",
        "415" => "The body has another content type or encoding than the accepted ones.",
        "422" => "Fields are missing or wrong.",
        "429" => "The tenant has reached one of its limits.",
        "500" => "The tokenizer panicked.",
        "501" => "The service has no tokenizer for the text.",
        "502" => "The tokenizer service refused the text.",
        "503" => "The service cannot do it now.",
        _ => "The request failed.",
    }
}

impl Endpoint {
    fn new(path: &'static str, method: HttpMethod, summary: &'static str) -> Self {
        Self {
            path,
            method,
            schemas: Vec::new(),
            needs: Vec::new(),
            takes_bytes: false,
            summary,
            parameters: Vec::new(),
            body: RequestBodyBuilder::new().required(Some(Required::True)),
            takes_body: false,
            is_open: false,
            responses: BTreeMap::new(),
        }
        .fails(&["401", "403"])
    }

    /// Opens the endpoint to every client, even if the other endpoints require a token.
    pub(super) fn open(mut self) -> Self {
        self.is_open = true;
        self.responses.retain(|status, _| !matches!(*status, "401" | "403"));
        self
    }

    /// Adds parameters of the query string.
    pub(super) fn asks<T: IntoParams>(mut self) -> Self {
        self.parameters.extend(T::into_params(|| Some(ParameterIn::Query)));
        self.fails(&["400"])
    }

    /// Adds a parameter of the path, whose values match `pattern`.
    pub(super) fn names(mut self, parameter: &str, description: &str, pattern: &str) -> Self {
        let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).build();
        let parameter = ParameterBuilder::new()
            .name(parameter)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some(description))
            .schema(Some(text));
        self.parameters.push(parameter.build());
        self
    }

    /// Adds a JSON body.
    pub(super) fn takes<T: ToSchema>(mut self) -> Self {
        self.schemas.push(add_schemas::<T>);
        self.takes_body = true;
        self.body = self.body.content(JSON, Content::new(Some(reference::<T>())));
        self.fails(&["400", "408", "413", "415", "422", "503"])
    }

    /// Adds a binary body.
    pub(super) fn takes_bytes(mut self, description: &str) -> Self {
        // A media type has no description. Its schema has no type: the body is not JSON.
        let schema = ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(description));
        let content = Content::builder().schema(Some(Schema::Object(schema.build()))).build();
        self.body = self.body.content(OCTET_STREAM, content);
        self.takes_bytes = true;
        self
    }

    /// Adds a condition on the fields of the JSON body.
    pub(super) fn needs(mut self, needs: Requirement) -> Self {
        self.needs.push(needs);
        self
    }

    /// Adds a JSON response with status 200.
    pub(super) fn answers<T: ToSchema>(self, description: &str) -> Self {
        self.answers_with::<T>("200", description)
    }

    pub(super) fn answers_with<T: ToSchema>(mut self, status: &'static str, description: &str) -> Self {
        self.schemas.push(add_schemas::<T>);
        self.answers_content(status, description, JSON, Content::new(Some(reference::<T>())))
    }

    pub(super) fn answers_list<T: ToSchema>(mut self, description: &str) -> Self {
        self.schemas.push(add_schemas::<T>);
        let list: RefOr<Schema> = ArrayBuilder::new().items(Ref::from_schema_name(T::name())).into();
        self.answers_content("200", description, JSON, Content::new(Some(list)))
    }

    pub(super) fn answers_texts(self, description: &str) -> Self {
        let list: RefOr<Schema> = ArrayBuilder::new().items(Object::with_type(Type::String)).into();
        self.answers_content("200", description, JSON, Content::new(Some(list)))
    }

    /// Adds a response without a schema.
    pub(super) fn answers_other(self, content_type: &'static str, description: &str) -> Self {
        self.answers_content("200", description, content_type, Content::new(None::<RefOr<Schema>>))
    }

    /// Adds the error responses with these statuses.
    pub(super) fn fails(self, statuses: &[&'static str]) -> Self {
        statuses.iter().fold(self, |endpoint, status| {
            let error = Content::new(Some(reference::<ErrorBody>()));
            endpoint.answers_content(status, failure(status), JSON, error)
        })
    }

    fn answers_content(
        mut self,
        status: &'static str,
        description: &str,
        content_type: &str,
        content: Content,
    ) -> Self {
        let response = self.responses.remove(status).unwrap_or_else(|| ResponseBuilder::new().description(description));
        self.responses.insert(status, response.content(content_type, content));
        self
    }

    pub(super) fn operation(self) -> OperationBuilder {
        let operation = OperationBuilder::new()
            .operation_id(Some(self.path.trim_start_matches('/').replace('.', "_")))
            .summary(Some(self.summary))
            .parameters(Some(self.parameters))
            .request_body(self.takes_body.then(|| self.body.build()));
        let operation = match self.is_open {
            true => operation,
            // A service without tokens requires none.
            false => operation
                .security(SecurityRequirement::default())
                .security(SecurityRequirement::new(BEARER, [] as [&str; 0])),
        };
        self.responses.into_iter().fold(operation, |operation, (status, response)| operation.response(status, response))
    }
}
