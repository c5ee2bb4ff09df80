//! Reasons for trust states, and the values of metrics' labels.

use flash_indexer_registry::described_labels;
use flash_indexer_telemetry::metrics::{LabelValues, describe_labels};
use flash_indexer_types::{LossReason, Trust};
use flash_indexer_wire::{DegradedReason, InferredLoss, PendingReason};

use super::{cell, head};

pub(super) fn page() -> String {
    let mut page = head("Reasons", "the declarations of trust states, limits and reasons");
    page.push_str("\n[Operations](../operations.md#trust) says what to do about each.\n");
    page.push_str("\n## Trust states\n");
    add_table(&mut page, "state", Trust::DESCRIPTIONS.map(|(name, about)| (format!("`{name}`"), about)));
    page.push_str(
        "\n## Why a rank is not exact\n\nThe text is that of `last_error` in `/workers`, and of explanations. Where nothing else is said, the \
         reason ends when the engine clears its cache or restarts, its whole stream is replayed, or an `exact` replica repairs the rank.\n\
         \nMessages of the stream are missing:\n",
    );
    let pending = PendingReason::EACH.map(|pending| (pending.to_string(), pending.description()));
    add_table(&mut page, "text", pending);
    page.push_str("\nMessages of the stream are lost:\n");
    add_table(&mut page, "text", DegradedReason::EACH.map(|degraded| (degraded.to_string(), degraded.description())));
    page.push_str("\nAnother loss is known:\n");
    let losses = LossReason::DESCRIPTIONS.into_iter().chain(InferredLoss::DESCRIPTIONS);
    add_table(&mut page, "text", losses.map(|(text, about)| (text.to_owned(), about)));
    page.push_str("\nA message or an event was rejected: the reasons of [rejected_total](#rejected_total) say where the rank is `degraded`.\n");
    page.push_str("\n## Values of labels\n");
    let mut metric_before = String::new();
    for LabelValues { metric, label, values } in describe_labels(described_labels()) {
        if metric != metric_before {
            page += &format!("\n### {metric}\n");
            metric_before.clone_from(&metric);
        }
        if metric == "/workers" {
            page.push_str("\nOf connections, beyond the reasons of [rejected_total](#rejected_total):\n");
        }
        let values = values.into_iter().map(|(name, about)| (format!("`{name}`"), about));
        add_table(&mut page, &format!("`{label}`"), values);
    }
    page
}

fn add_table(page: &mut String, head: &str, rows: impl IntoIterator<Item = (String, &'static str)>) {
    *page += &format!("\n| {head} | meaning |\n|---|---|\n");
    for (name, about) in rows {
        *page += &format!("| {} | {} |\n", cell(&name), cell(about));
    }
}
