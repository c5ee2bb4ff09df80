//! Generated prompts have the documented distributions.

use std::collections::BTreeMap;

use flash_indexer_core::{BlockEvent, LocalHash};
use flash_indexer_sim::workload::{AgenticOptions, AgenticSessions, DocumentPrompts, GeneratedPrompt};
use flash_indexer_sim::{Fleet, FleetOptions, Routing};

const PROMPTS: usize = 60_000;
/// A generated quantile may differ from the measured one by a fifth.
const TOLERANCE: f64 = 0.2;

fn sessions(prompts: &[GeneratedPrompt]) -> BTreeMap<u64, Vec<&GeneratedPrompt>> {
    let mut sessions: BTreeMap<u64, Vec<&GeneratedPrompt>> = BTreeMap::new();
    prompts.iter().for_each(|prompt| sessions.entry(prompt.session).or_default().push(prompt));
    sessions
}

fn common(one: &[u64], other: &[u64]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

fn quantile(values: &mut [f64], quantile: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() as f64 * quantile) as usize]
}

#[track_caller]
fn check(what: &str, mut values: Vec<f64>, measured: &[(f64, f64)]) {
    for &(at, expected) in measured {
        let generated = quantile(&mut values, at);
        println!("{what}: {generated:.0} at {at}, measured {expected}");
        let difference = (generated / expected - 1.0).abs();
        assert!(difference <= TOLERANCE, "{what}: {generated} at {at}, measured {expected}");
    }
}

#[test]
fn agentic_sessions_have_the_measured_distributions() {
    let prompts: Vec<_> = AgenticSessions::new(AgenticOptions::default(), 1).take(PROMPTS).collect();
    let sessions = sessions(&prompts);
    let ended: Vec<_> = {
        let open: Vec<u64> = prompts.iter().rev().take(PROMPTS / 40).map(|prompt| prompt.session).collect();
        // The first sessions start together: sessions that outlast them would be counted too rarely.
        let fair = |number: &u64| *number < sessions.len() as u64 / 2 && !open.contains(number);
        sessions.iter().filter(|(number, _)| fair(number)).map(|(_, prompts)| prompts).collect()
    };
    let blocks = |prompt: &GeneratedPrompt| prompt.hash_ids.len() as f64;
    check(
        "requests",
        ended.iter().map(|session| session.len() as f64).collect(),
        &[(0.1, 7.0), (0.5, 46.0), (0.9, 179.0)],
    );
    let firsts = sessions.values().map(|session| blocks(session[0])).collect();
    check("first prompt", firsts, &[(0.1, 226.0), (0.5, 381.0), (0.9, 3_684.0)]);
    check("prompt", prompts.iter().map(blocks).collect(), &[(0.1, 667.0), (0.5, 1_658.0), (0.9, 3_955.0)]);
    let steps = || sessions.values().flat_map(|session| session.windows(2));
    let shared = |pair: &[&GeneratedPrompt]| common(&pair[0].hash_ids, &pair[1].hash_ids);
    let new = steps().map(|pair| (pair[1].hash_ids.len() - shared(pair)) as f64).collect();
    check("new blocks", new, &[(0.1, 3.0), (0.5, 11.0), (0.9, 71.0), (0.99, 1_388.0)]);
    let mut shares: Vec<f64> = steps().map(|pair| shared(pair) as f64 / blocks(pair[1])).collect();
    let share = quantile(&mut shares, 0.5);
    assert!((share - 0.993).abs() < 0.003, "{share} of a median prompt was in the previous one");
    let outputs = prompts.iter().map(|prompt| prompt.output_tokens as f64).collect();
    check("output tokens", outputs, &[(0.1, 105.0), (0.5, 225.0), (0.9, 932.0)]);
    let pauses: Vec<f64> = steps().map(|pair| (pair[1].at_ms - pair[0].at_ms) as f64).collect();
    check("pause", vec![pauses.iter().sum::<f64>() / pauses.len() as f64], &[(0.0, 18_000.0)]);
    assert!(prompts.is_sorted_by_key(|prompt| prompt.at_ms));
}

#[test]
fn agentic_sessions_keep_outputs_or_leave_them_and_fork() {
    let prompts: Vec<_> = AgenticSessions::new(AgenticOptions::default(), 1).take(10_000).collect();
    let sessions = sessions(&prompts);
    let steps = || sessions.values().flat_map(|session| session.windows(2));
    let with_output = steps().filter(|pair| !pair[0].output_ids.is_empty());
    let keeps = |pair: &&[&GeneratedPrompt]| {
        let whole = [&pair[0].hash_ids[..], &pair[0].output_ids].concat();
        pair[1].hash_ids.starts_with(&whole)
    };
    let (kept, all) = (with_output.clone().filter(keeps).count(), with_output.count());
    assert!((all / 3..all * 2 / 3).contains(&kept), "{kept} of {all} prompts repeat the last output");
    // A sub-agent shares more than a system prompt with the session that forked it.
    let firsts: Vec<&[u64]> = sessions.values().map(|session| &session[0].hash_ids[..]).collect();
    let shares_more = |at: usize| (0..at).any(|other| common(firsts[at], firsts[other]) > 200);
    let forked = (0..firsts.len()).filter(|&at| shares_more(at)).count();
    assert!(forked > firsts.len() / 50 && forked < firsts.len() / 2, "{forked} of {} sessions", firsts.len());
}

#[test]
fn equal_seeds_generate_equal_prompts() {
    let agentic = |seed| AgenticSessions::new(AgenticOptions::default(), seed).take(500).collect::<Vec<_>>();
    assert_eq!(agentic(1), agentic(1));
    assert_ne!(agentic(1), agentic(2));
    let documents = |seed| DocumentPrompts::new(20, seed).take(500).collect::<Vec<_>>();
    assert_eq!(documents(1), documents(1));
    assert_ne!(documents(1), documents(2));
}

#[test]
fn document_prompts_ask_about_long_shared_documents() {
    let prompts: Vec<_> = DocumentPrompts::new(400, 1).take(20_000).collect();
    let blocks: f64 = prompts.iter().map(|prompt| prompt.hash_ids.len() as f64).sum();
    check("prompt", vec![blocks / prompts.len() as f64], &[(0.0, 244.0)]);
    let mut documents: BTreeMap<u64, usize> = BTreeMap::new();
    prompts.iter().for_each(|prompt| *documents.entry(prompt.hash_ids[0]).or_default() += 1);
    assert!(documents.values().filter(|&&prompts| prompts > 1).count() > 350);
}

#[test]
fn a_fleet_stores_outputs_block_by_block_and_keeps_sessions_on_one_worker() {
    let options = FleetOptions {
        workers: 4,
        blocks_per_hash_id: 1,
        routing: Routing::SessionAffinity,
        ..FleetOptions::default()
    };
    let mut fleet = Fleet::new(options);
    let options = AgenticOptions { open_sessions: 8, sub_agents_percent: 0, ..AgenticOptions::default() };
    let mut last: BTreeMap<u64, (GeneratedPrompt, u64)> = BTreeMap::new();
    let (mut stayed, mut moved) = (0, 0);
    for prompt in AgenticSessions::new(options, 1).take(400) {
        let step = fleet.serve(prompt.as_hashed()).expect("the caches are large enough");
        assert_eq!(step.query.len(), prompt.hash_ids.len(), "a query has the blocks of the prompt");
        let stored = |event: &BlockEvent| match event {
            BlockEvent::Stored { blocks, .. } => blocks.iter().map(|block| block.local).collect(),
            _ => Vec::new(),
        };
        let stored: Vec<Vec<LocalHash>> = step.events.iter().map(stored).filter(|blocks| !blocks.is_empty()).collect();
        let of_output = &stored[stored.len() - prompt.output_ids.len()..];
        assert!(of_output.iter().all(|blocks| blocks.len() == 1));
        if let Some((before, worker)) = last.get(&prompt.session)
            && common(&before.hash_ids, &prompt.hash_ids) > prompt.hash_ids.len() / 2
        {
            if step.rank.worker.0 == *worker { stayed += 1 } else { moved += 1 }
        }
        last.insert(prompt.session, (prompt, step.rank.worker.0));
    }
    assert!(stayed > 300 && moved == 0, "{stayed} requests stayed with their session's worker, {moved} moved");
    let workers: Vec<u64> = last.values().map(|&(_, worker)| worker).collect();
    assert!((0..4).all(|worker| workers.contains(&worker)), "new sessions go to every worker");
}
