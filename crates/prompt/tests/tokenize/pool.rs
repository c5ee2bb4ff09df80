//! The queue, the workers and their shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use flash_indexer_prompt::tokenize::{FailureReason, PoolOptions, TokenizeError, TokenizerPool};
use flash_indexer_test_support::wait_for;
use parking_lot::Mutex;

use crate::support::{DEADLINE, forgetful, ids, pool_of, submit, text, tokenizing_with};

/// A pool of one worker. It is busy with a first prompt while `then` runs, and continues afterwards.
fn held_while(options: PoolOptions, then: impl FnOnce(&TokenizerPool)) -> TokenizerPool {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let pass = Arc::clone(&gate);
    let source = tokenizing_with(move |text| {
        drop(pass.lock());
        vec![text.len() as u32]
    });
    let pool = TokenizerPool::start(vec![Box::new(source)], &PoolOptions { workers: 1, ..options }).expect("threads");
    submit(&pool, text("first"), |_| {}).expect("room");
    wait_for("the worker taking the first prompt", DEADLINE, || (pool.statistics().queued == 0).then_some(()));
    then(&pool);
    drop(closed);
    pool
}

#[test]
fn results_arrive_by_return_value_and_by_callback() {
    let pool = pool_of(tokenizing_with(|text| text.bytes().map(u32::from).collect()));
    let tokenized = pool.tokenize("model", text("ab")).expect("tokens");
    assert_eq!((tokenized.ids, &*tokenized.source), (vec![97, 98], "a script"));

    let (sender, results) = channel();
    for number in 0..100u32 {
        let sender = sender.clone();
        submit(&pool, text(&"x".repeat(number as usize)), move |result| {
            sender.send((number, result.expect("tokens").ids.len())).expect("the test listens");
        })
        .expect("room");
    }
    let mut seen: Vec<_> = (0..100).map(|_| results.recv_timeout(DEADLINE).expect("a result")).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..100).map(|number| (number, number as usize)).collect::<Vec<_>>());
    let statistics = pool.statistics();
    assert_eq!((statistics.done, statistics.cache_hits, statistics.loads), (101, 100, 1));
}

#[test]
fn a_full_queue_refuses_and_says_so() {
    let done = Arc::new(AtomicUsize::new(0));
    let options = PoolOptions { queued_prompts_max: 3, ..forgetful() };
    let pool = held_while(options, |pool| {
        for _ in 0..3 {
            let done = Arc::clone(&done);
            let count = move |result: Result<_, _>| {
                done.fetch_add(usize::from(result.is_ok()), Ordering::Relaxed);
            };
            submit(pool, text("ab"), count).expect("room");
        }
        let refused = submit(pool, text("ab"), |_| panic!("it was refused")).expect_err("no room");
        assert!(matches!(refused, TokenizeError::QueueFull { prompts: 3, bytes: 6 }), "{refused}");
        assert!(refused.to_string().contains("more workers"), "{refused}");
        let refused = pool.tokenize("model", text("ab")).expect_err("no room");
        assert_eq!(refused.reason(), FailureReason::QueueFull);
        let statistics = pool.statistics();
        assert_eq!((statistics.queued, statistics.queued_bytes), (3, 6));
        assert_eq!(statistics.failed[&FailureReason::QueueFull], 2);
    });
    wait_for("what was queued", DEADLINE, || (done.load(Ordering::Relaxed) == 3).then_some(()));
    assert_eq!(ids(&pool, "model", "abc"), [3]);
}

#[test]
fn bytes_are_bounded_as_well_and_one_large_prompt_fits_an_empty_queue() {
    let options = PoolOptions { queued_bytes_max: 10, ..forgetful() };
    let pool = held_while(options, |pool| {
        submit(pool, text(&"x".repeat(100)), |_| {}).expect("the queue was empty");
        let refused = submit(pool, text("x"), |_| {}).expect_err("no room");
        assert!(matches!(refused, TokenizeError::QueueFull { prompts: 1, bytes: 100 }), "{refused}");
    });
    wait_for("the large one", DEADLINE, || (pool.statistics().queued == 0).then_some(()));
    assert_eq!(ids(&pool, "model", "abc"), [3]);
}

#[test]
fn a_withdrawn_prompt_leaves_the_queue() {
    let (sender, results) = channel();
    let options = PoolOptions { queued_prompts_max: 3, ..forgetful() };
    let pool = held_while(options, |pool| {
        let submit = |name: &'static str| {
            let sender = sender.clone();
            let tell = move |result: Result<_, TokenizeError>| {
                sender.send((name, result.map_err(|error| error.reason()).err())).expect("the test listens");
            };
            submit(pool, text(name), tell).expect("room")
        };
        let tickets = ["a", "bb", "ccc"].map(submit);
        pool.withdraw(tickets[1]);
        pool.withdraw(tickets[1]);
        assert_eq!((pool.statistics().queued, pool.statistics().queued_bytes), (2, 4));
        submit("d");
    });
    let outcomes: Vec<_> = (0..4).map(|_| results.recv_timeout(DEADLINE).expect("each callback is called")).collect();
    assert_eq!(outcomes, [("bb", Some(FailureReason::Withdrawn)), ("a", None), ("ccc", None), ("d", None)]);
    assert_eq!(pool.statistics().failed[&FailureReason::Withdrawn], 1);
}

#[test]
fn a_panic_fails_its_prompt_and_nothing_else() {
    let pool = pool_of(tokenizing_with(|text| {
        assert!(text != "bad", "a word that it cannot stand");
        vec![1]
    }));
    for _ in 0..10 {
        let error = pool.tokenize("model", text("bad")).expect_err("it panics");
        assert_eq!(error.reason(), FailureReason::Panicked);
        assert!(error.to_string().contains("a word that it cannot stand"), "{error}");
    }
    assert_eq!(ids(&pool, "model", "good"), [1]);
    submit(&pool, text("good"), |_| panic!("a callback that fails")).expect("room");
    wait_for("the callback", DEADLINE, || (pool.statistics().callbacks_panicked == 1).then_some(()));
    assert_eq!(ids(&pool, "model", "good"), [1]);
    assert_eq!(pool.statistics().failed[&FailureReason::Panicked], 10);
}

#[test]
fn stopping_ends_what_was_begun_and_refuses_what_waits() {
    let (sender, results) = channel();
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let pass = Arc::clone(&gate);
    let source = tokenizing_with(move |_| {
        drop(pass.lock());
        vec![1]
    });
    let pool = Arc::new(
        TokenizerPool::start(vec![Box::new(source)], &PoolOptions { workers: 1, ..forgetful() }).expect("threads"),
    );
    let submit = |name: &'static str| {
        let sender = sender.clone();
        let tell = move |result: Result<_, _>| sender.send((name, result.is_ok())).expect("the test listens");
        submit(&pool, text(name), tell).expect("room");
    };
    submit("begun");
    wait_for("the worker taking it", DEADLINE, || (pool.statistics().queued == 0).then_some(()));
    submit("waits");
    submit("waits too");
    let stopping = std::thread::spawn({
        let pool = Arc::clone(&pool);
        move || pool.stop()
    });
    let refused: Vec<_> = (0..2).map(|_| results.recv_timeout(DEADLINE).expect("a refusal")).collect();
    assert_eq!(refused, [("waits", false), ("waits too", false)]);
    assert!(!stopping.is_finished(), "a prompt is still being tokenized");
    drop(closed);
    stopping.join().expect("it stops");
    assert_eq!(results.try_recv().expect("it was finished before"), ("begun", true));
    assert!(matches!(pool.tokenize("model", text("late")), Err(TokenizeError::Stopped)));
    assert_eq!(pool.statistics().failed[&FailureReason::Stopped], 3);
}

#[test]
fn a_pool_may_be_dropped_by_its_own_worker() {
    let pool = Arc::new(pool_of(tokenizing_with(|_| vec![1])));
    let (sender, ended) = channel();
    let (gate, opened) = channel::<()>();
    let own = Arc::clone(&pool);
    submit(&pool, text("x"), move |_| {
        opened.recv_timeout(DEADLINE).expect("the test lets go");
        drop(own);
        sender.send(()).expect("the test listens");
    })
    .expect("room");
    drop(pool);
    gate.send(()).expect("the callback waits");
    ended.recv_timeout(DEADLINE).expect("the worker outlived it");
}
