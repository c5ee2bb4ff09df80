//! The cache of tokenizers and of missing models.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flash_indexer_prompt::tokenize::{
    FailureReason, LoadError, ModelTokenizer, PoolOptions, TokenizeError, TokenizerPool, TokenizerSource,
};
use flash_indexer_test_support::wait_for;
use parking_lot::Mutex;

use crate::support::{DEADLINE, FnTokenizer, Scripted, forgetful, ids, pool_of, submit, text, tokenizing_with};

type Load = Result<Arc<dyn ModelTokenizer>, LoadError>;

fn ones() -> Load {
    Ok(Arc::new(FnTokenizer(|_: &str| vec![1])))
}

/// A source that counts how often each model was loaded.
fn counting(loads: &Arc<Mutex<HashMap<String, usize>>>) -> impl TokenizerSource + use<> {
    let loads = Arc::clone(loads);
    Scripted(move |model: &str| {
        *loads.lock().entry(model.to_owned()).or_default() += 1;
        ones()
    })
}

#[test]
fn the_least_recently_used_tokenizer_is_evicted() {
    let loads = Arc::default();
    let options = PoolOptions { loaded_models_max: 2, ..forgetful() };
    let pool = TokenizerPool::start(vec![Box::new(counting(&loads))], &options).expect("threads");
    for model in ["a", "b", "a", "c", "a", "b"] {
        ids(&pool, model, "x");
    }
    let expected = HashMap::from([("a".to_owned(), 1), ("b".to_owned(), 2), ("c".to_owned(), 1)]);
    assert_eq!(*loads.lock(), expected);
    let statistics = pool.statistics();
    assert_eq!((statistics.loaded, statistics.loads, statistics.cache_evictions), (2, 4, 2));
    assert_eq!((statistics.cache_hits, statistics.cache_misses), (2, 4));
}

#[test]
fn threads_are_replaced_when_many_tokenizers_were_dropped() {
    let threads = Arc::new(Mutex::new(HashSet::new()));
    let seen = Arc::clone(&threads);
    let source = tokenizing_with(move |_| {
        seen.lock().insert(std::thread::current().id());
        vec![1]
    });
    let options = PoolOptions { loaded_models_max: 1, ..forgetful() };
    let pool = TokenizerPool::start(vec![Box::new(source)], &options).expect("threads");
    for model in 0..100 {
        assert_eq!(ids(&pool, &model.to_string(), "x"), [1]);
    }
    assert_eq!(pool.statistics().cache_evictions, 99);
    assert!(threads.lock().len() > options.workers, "what they remember of dropped tokenizers goes with them");
    pool.stop();
}

#[test]
fn a_model_requested_concurrently_is_loaded_once() {
    let loads = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let source = Scripted({
        let (loads, gate) = (Arc::clone(&loads), Arc::clone(&gate));
        move |_: &str| {
            loads.fetch_add(1, Ordering::Relaxed);
            drop(gate.lock());
            ones()
        }
    });
    let pool =
        TokenizerPool::start(vec![Box::new(source)], &PoolOptions { workers: 4, ..forgetful() }).expect("threads");
    let done = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let done = Arc::clone(&done);
        submit(&pool, text("x"), move |result| {
            done.fetch_add(usize::from(result.is_ok()), Ordering::Relaxed);
        })
        .expect("room");
    }
    wait_for("four workers waiting", DEADLINE, || (pool.statistics().cache_misses == 4).then_some(()));
    drop(closed);
    wait_for("four results", DEADLINE, || (done.load(Ordering::Relaxed) == 4).then_some(()));
    assert_eq!(loads.load(Ordering::Relaxed), 1);
    assert_eq!(pool.statistics().loads, 1);
}

#[test]
fn a_failure_is_remembered_for_a_while_only() {
    let tries = Arc::new(AtomicUsize::new(0));
    let source = |tries: &Arc<AtomicUsize>| {
        let tries = Arc::clone(tries);
        Scripted(move |_: &str| match tries.fetch_add(1, Ordering::Relaxed) {
            0 => Err(LoadError::Failed("the disk is on fire".to_owned())),
            _ => ones(),
        })
    };
    let remembering = PoolOptions { missing_for: Duration::from_secs(3600), ..forgetful() };
    let pool = TokenizerPool::start(vec![Box::new(source(&tries))], &remembering).expect("threads");
    for _ in 0..3 {
        let error = pool.tokenize("model", text("x")).expect_err("it failed");
        assert!(matches!(error, TokenizeError::LoadFailed(_)), "{error}");
        assert!(error.to_string().contains("tried a script: the disk is on fire"), "{error}");
        assert!(error.to_string().ends_with("one of these sources; requests try them again in 3600 s"), "{error}");
    }
    assert_eq!(tries.load(Ordering::Relaxed), 1);
    let statistics = pool.statistics();
    assert_eq!((statistics.loads_failed, statistics.cache_negative_hits), (1, 2));
    assert_eq!(statistics.failed[&FailureReason::LoadFailed], 3);

    tries.store(0, Ordering::Relaxed);
    let pool = pool_of(source(&tries));
    pool.tokenize("model", text("x")).expect_err("it failed");
    assert_eq!(ids(&pool, "model", "x"), [1]);
}

#[test]
fn missing_models_take_no_room_from_loaded_ones() {
    let source = Scripted(|model: &str| match model {
        "there" => ones(),
        _ => Err(LoadError::Absent("only one is there".to_owned())),
    });
    let options = PoolOptions { loaded_models_max: 1, missing_for: Duration::from_secs(3600), ..forgetful() };
    let pool = TokenizerPool::start(vec![Box::new(source)], &options).expect("threads");
    ids(&pool, "there", "x");
    for model in 0..3000 {
        pool.tokenize(&model.to_string(), text("x")).expect_err("it is not there");
    }
    ids(&pool, "there", "x");
    assert_eq!((pool.statistics().loads, pool.statistics().cache_evictions), (1, 0));
    let error = pool.tokenize(&"x".repeat(2000), text("x")).expect_err("too long");
    assert!(matches!(error, TokenizeError::ModelName { bytes: 2000 }), "{error}");
}

#[test]
fn sources_are_tried_in_order_and_all_are_named() {
    let nothing = || Box::new(Scripted(|_: &str| Err(LoadError::Absent("nothing here".to_owned()))));
    let panics = Scripted(|model: &str| match model {
        "bad" => panic!("an unexpected file"),
        _ => Err(LoadError::Absent("nor here".to_owned())),
    });
    let last = Scripted(|model: &str| match model {
        "known" => ones(),
        _ => Err(LoadError::Absent("nor at the end".to_owned())),
    });
    let sources: Vec<Box<dyn TokenizerSource>> = vec![nothing(), Box::new(panics), Box::new(last)];
    let pool = TokenizerPool::start(sources, &forgetful()).expect("threads");
    assert_eq!(ids(&pool, "known", "x"), [1]);
    let error = pool.tokenize("unknown", text("x")).expect_err("no source has it");
    assert_eq!(
        error.to_string(),
        "failed to find a tokenizer for model \"unknown\": tried a script: nothing here; a script: nor here; a script: nor at the \
         end; add the model's tokenizer.json to one of these sources, or request another model; the next request tries them again"
    );
    assert_eq!(error.reason(), FailureReason::UnknownModel);
    let error = pool.tokenize("bad", text("x")).expect_err("a source panics");
    assert_eq!(error.reason(), FailureReason::LoadFailed);
    assert!(error.to_string().contains("an unexpected file"), "{error}");

    let pool = TokenizerPool::start(Vec::new(), &forgetful()).expect("threads");
    let error = pool.tokenize("any", text("x")).expect_err("there is no source");
    assert!(error.to_string().contains("no source of tokenizers is configured"), "{error}");
}
