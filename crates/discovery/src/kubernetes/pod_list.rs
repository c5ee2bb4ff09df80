//! Engines of Kubernetes pods, from their annotations and labels. No I/O.

use std::collections::BTreeMap;
use std::str::FromStr;

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_types::names::shorten;
use flash_indexer_types::{InstanceId, RemovalMeaning};
use serde::Deserialize;
use serde::de::IntoDeserializer;

use super::KubernetesNamespace;
use crate::reconcile::Targets;
use crate::report::DiscoveredTargets;
use crate::template::{EngineTemplate, EngineTraits, url_host};

/// Prefix of the annotations and labels that describe an engine.
const PREFIX: &str = "flash-indexer/";

/// A pod, with the fields that discovery needs.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    metadata: Metadata,
    status: PodStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    resource_version: String,
    deletion_timestamp: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

impl Pod {
    /// Version of the cluster's state.
    pub(super) fn version(&self) -> &str {
        &self.metadata.resource_version
    }

    fn key(&self) -> (String, String) {
        (self.metadata.namespace.clone(), self.metadata.name.clone())
    }

    /// Address of a pod that is ready and not being deleted.
    fn address(&self) -> Option<&str> {
        let mut conditions = self.status.conditions.iter().flatten();
        let is_ready = conditions.any(|condition| condition.r#type == "Ready" && condition.status == "True");
        let stays = self.metadata.deletion_timestamp.is_none();
        self.status.pod_ip.as_deref().filter(|address| is_ready && stays && !address.is_empty())
    }

    /// Value of an annotation, or else of a label.
    fn annotation(&self, key: &str) -> Option<&str> {
        let name = format!("{PREFIX}{key}");
        let metadata = [&self.metadata.annotations, &self.metadata.labels].into_iter().flatten();
        metadata.into_iter().find_map(|values| values.get(&name)).map(String::as_str)
    }

    fn traits(&self) -> Result<EngineTraits, String> {
        let block_size = self.number("block-size")?;
        let block_size =
            block_size.map(|tokens| BlockSize::new(tokens).ok_or("flash-indexer/block-size must be at least 1"));
        Ok(EngineTraits {
            model_name: self.annotation("model-name").map(str::to_owned),
            tenant_id: self.annotation("tenant-id").map(str::to_owned),
            block_size: block_size.transpose()?,
            port: self.number("port")?,
            replay_port: self.number("replay-port")?,
            data_parallel_size: self.number("data-parallel-size")?,
            lora_name: self.annotation("lora-name").map(str::to_owned),
            engine: self.keyword("engine")?,
            removal: self.keyword::<RemovalMeaning>("removal")?,
            extra_keys: self.parsed("extra-keys", "true or false")?,
            ..EngineTraits::default()
        })
    }

    fn number<T: FromStr>(&self, key: &str) -> Result<Option<T>, String> {
        self.parsed(key, "a number")
    }

    fn parsed<T: FromStr>(&self, key: &str, form: &str) -> Result<Option<T>, String> {
        let parse = |text: &str| text.parse().map_err(|_| format!("{PREFIX}{key} cannot be {text:?}: give {form}"));
        self.annotation(key).map(parse).transpose()
    }

    fn keyword<'de, T: Deserialize<'de>>(&'de self, key: &str) -> Result<Option<T>, String> {
        let parse = |text: &'de str| {
            let text: serde::de::value::StrDeserializer<'de, serde::de::value::Error> = text.into_deserializer();
            T::deserialize(text).map_err(|error| format!("{PREFIX}{key}: {error}"))
        };
        self.annotation(key).map(parse).transpose()
    }
}

/// Ranks of one pod.
#[derive(Debug, Default, PartialEq)]
struct PodTargets {
    targets: Targets,
    problem: Option<String>,
}

/// All pods of a selector.
pub(super) struct PodSet {
    template: EngineTemplate,
    namespace: KubernetesNamespace,
    pods: BTreeMap<(String, String), PodTargets>,
    /// Ranks of all pods, until one changes.
    found: Option<DiscoveredTargets>,
}

impl PodSet {
    pub(super) fn new(template: EngineTemplate, namespace: KubernetesNamespace) -> Self {
        Self { template, namespace, pods: BTreeMap::new(), found: None }
    }

    /// Replaces all pods.
    pub(super) fn replace(&mut self, pods: &[Pod]) {
        let mut previous = std::mem::take(&mut self.pods);
        self.found = None;
        for pod in pods {
            // A pod that is invalid now keeps its last valid ranks.
            if let Some(pod_targets) = previous.remove(&pod.key()) {
                self.pods.insert(pod.key(), pod_targets);
            }
            self.set(pod);
        }
    }

    /// Adds or updates a pod.
    pub(super) fn set(&mut self, pod: &Pod) {
        let before = self.pods.remove(&pod.key()).unwrap_or_default();
        let now = match pod.address().map(|address| self.targets(pod, address)) {
            None => PodTargets::default(),
            Some(Ok(targets)) => PodTargets { targets, problem: None },
            Some(Err(problem)) => PodTargets {
                targets: before.targets.clone(),
                problem: Some(shorten(format!("pod {}/{}: {problem}", pod.metadata.namespace, pod.metadata.name))),
            },
        };
        if now != before {
            self.found = None;
        }
        self.pods.insert(pod.key(), now);
    }

    pub(super) fn remove(&mut self, pod: &Pod) {
        if self.pods.remove(&pod.key()).is_some() {
            self.found = None;
        }
    }

    /// Ranks of all pods. Cheap if they are unchanged.
    pub(super) fn found(&mut self) -> DiscoveredTargets {
        let pods = &self.pods;
        let found = self.found.get_or_insert_with(|| {
            let targets = pods.values().flat_map(|pod_targets| pod_targets.targets.clone());
            let problems = pods.values().filter_map(|pod_targets| pod_targets.problem.clone());
            DiscoveredTargets::new(targets.collect(), problems.collect())
        });
        found.clone()
    }

    fn targets(&self, pod: &Pod, address: &str) -> Result<Targets, String> {
        let Metadata { name, namespace, .. } = &pod.metadata;
        let instance = match &self.namespace {
            KubernetesNamespace::All => InstanceId::parse(&format!("{namespace}/{name}")),
            KubernetesNamespace::Own | KubernetesNamespace::Named(_) => InstanceId::parse(name),
        };
        let instance = instance.map_err(|error| error.to_string())?;
        let mut targets = Targets::new();
        let added = self.template.add_ranks(&mut targets, &instance, &url_host(address), &pod.traits()?);
        added.map_err(|error| error.to_string()).map(|()| targets)
    }
}
