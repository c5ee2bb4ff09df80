//! Metrics, from the registry's own descriptions.

use std::collections::BTreeSet;

use flash_indexer_registry::{described_labels, described_sections};
use flash_indexer_telemetry::metrics::{MetricDescription, describe_labels, describe_metrics};

use super::{cell, head};

pub(super) fn page() -> String {
    let mut page = head("Metrics", "the registry of metrics");
    page.push_str(
        "\nNames begin with `flash_indexer_`, which the table omits, except those of the process. The labels of a model are `model_name` and \
         `tenant_id`. [Reasons](reasons.md) has the values of labels. [Operations](../operations.md#metrics) says what to do about a metric.\n\
         \n\
         An alias that begins with `dynamo_kvindexer_` needs `serve --compat-metrics`, and may have fewer labels. The others stay until 1.0.\n\
         \n\
         | metric | labels | meaning |\n|---|---|---|\n",
    );
    let values = describe_labels(described_labels());
    let valued: BTreeSet<_> = values.iter().map(|values| (&*values.metric, values.label)).collect();
    for MetricDescription { name, kind, labels, help, aliases } in describe_metrics(described_sections()) {
        let labels = labels.iter().map(|label| match valued.contains(&(&*name, &**label)) {
            true => format!("[`{label}`](reasons.md#{name})"),
            false => format!("`{label}`"),
        });
        let labels = labels.collect::<Vec<_>>().join(", ");
        let aliases: String = aliases.iter().map(|alias| format!("<br>alias `{alias}`")).collect();
        page += &format!("| `{name}`<br>{kind}{aliases} | {labels} | {} |\n", cell(&help));
    }
    page
}
