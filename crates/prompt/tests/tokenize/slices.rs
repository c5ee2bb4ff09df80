//! Long prompts are tokenized in slices, between which others are served.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use flash_indexer_prompt::tokenize::{
    Effort, FailureReason, LoadError, ModelTokenizer, PieceCache, PoolOptions, Prompt, PromptOptions,
    SlicedTokenization, Tokenization, TokenizeError, TokenizerPool,
};
use flash_indexer_test_support::wait_for;
use parking_lot::Mutex;

use crate::support::{DEADLINE, Scripted, forgetful, submit, text};

/// Length of a prompt that is not short.
const LONG: usize = 100_000;

/// A tokenizer of one slice for each `|` in a text. A slice waits until the test releases it, and reports the text.
#[derive(Clone)]
struct Gated {
    passes: Arc<Mutex<Receiver<()>>>,
    begun: Sender<String>,
}

struct Slices {
    gate: Gated,
    name: String,
    left: usize,
}

impl ModelTokenizer for Gated {
    fn tokenize(
        &self,
        prompt: Prompt,
        _: PromptOptions,
        _: &Arc<PieceCache>,
        _: Effort,
    ) -> Result<Tokenization, TokenizeError> {
        let Prompt::Text(text) = prompt else { panic!("only texts") };
        let (left, name) = (text.matches('|').count(), text.trim_end().trim_end_matches('|').to_owned());
        Ok(Tokenization::Sliced(Box::new(Slices { gate: self.clone(), name, left })))
    }
}

impl SlicedTokenization for Slices {
    fn step(&mut self) -> Result<Option<Vec<u32>>, TokenizeError> {
        self.gate.begun.send(self.name.clone()).expect("the test listens");
        self.gate.passes.lock().recv_timeout(DEADLINE).expect("the test lets it pass");
        self.left -= 1;
        Ok((self.left == 0).then(|| vec![1]))
    }
}

/// A pool of one worker, the sender that releases a slice, and the slices that have begun.
fn gated() -> (TokenizerPool, Sender<()>, Receiver<String>) {
    let (pass, passes) = channel();
    let (begun, slices) = channel();
    let tokenizer = Gated { passes: Arc::new(Mutex::new(passes)), begun };
    let source =
        Scripted(move |_: &str| -> Result<Arc<dyn ModelTokenizer>, LoadError> { Ok(Arc::new(tokenizer.clone())) });
    let options = PoolOptions { workers: 1, ..forgetful() };
    (TokenizerPool::start(vec![Box::new(source)], &options).expect("threads"), pass, slices)
}

fn long(name: &str) -> Prompt {
    text(&format!("{name}{}", " ".repeat(LONG)))
}

/// Releases slices until none is left, and returns their prompts.
fn order(pass: &Sender<()>, slices: &Receiver<String>, count: usize) -> String {
    let next = || {
        let name = slices.recv_timeout(DEADLINE).expect("a slice");
        pass.send(()).expect("the pool listens");
        name
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn short_prompts_are_served_between_the_slices_of_long_ones() {
    let (pool, pass, slices) = gated();
    let submit = |prompt| submit(&pool, prompt, |result| assert!(result.is_ok())).expect("room");
    submit(long("A||||"));
    assert_eq!(slices.recv_timeout(DEADLINE).expect("the first slice"), "A");
    submit(long("B||"));
    submit(text("c|"));
    submit(text("d|"));
    pass.send(()).expect("the pool listens");
    assert_eq!(order(&pass, &slices, 7), "cdBABAA", "the long ones take turns");
}

#[test]
fn many_short_prompts_do_not_keep_a_long_one_from_its_turn() {
    let (pool, pass, slices) = gated();
    let submit = |prompt| submit(&pool, prompt, |result| assert!(result.is_ok())).expect("room");
    submit(long("A|||"));
    assert_eq!(slices.recv_timeout(DEADLINE).expect("the first slice"), "A");
    for _ in 0..20 {
        submit(text("c|"));
    }
    pass.send(()).expect("the pool listens");
    assert_eq!(order(&pass, &slices, 22), "ccccccccAccccccccAcccc");
}

#[test]
fn the_rest_of_a_withdrawn_prompt_is_not_tokenized() {
    let (pool, pass, slices) = gated();
    let (sender, results) = channel();
    let report = move |result: Result<_, TokenizeError>| {
        sender.send(result.map_err(|error| error.reason()).err()).expect("the test listens");
    };
    let ticket = submit(&pool, long("A|||||"), report).expect("room");
    assert_eq!(slices.recv_timeout(DEADLINE).expect("the first slice"), "A");
    pool.withdraw(ticket);
    pool.withdraw(ticket);
    submit(&pool, text("b|"), |result| assert!(result.is_ok())).expect("room");
    pass.send(()).expect("the pool listens");
    assert_eq!(results.recv_timeout(DEADLINE).expect("the callback is called"), Some(FailureReason::Withdrawn));
    assert_eq!(order(&pass, &slices, 1), "b", "not a second slice");
    wait_for("the short prompt", DEADLINE, || (pool.statistics().done == 1).then_some(()));
    assert_eq!(pool.statistics().failed[&FailureReason::Withdrawn], 1);
    assert_eq!((pool.statistics().queued, pool.statistics().queued_bytes), (0, 0));

    // Between two slices: it waits in the queue again, after a short prompt.
    let (sender, results) = channel();
    let report = move |result: Result<_, TokenizeError>| {
        sender.send(result.map_err(|error| error.reason()).err()).expect("the test listens");
    };
    let ticket = submit(&pool, long("A|||||"), report).expect("room");
    assert_eq!(slices.recv_timeout(DEADLINE).expect("the first slice"), "A");
    submit(&pool, text("b|"), |result| assert!(result.is_ok())).expect("room");
    pass.send(()).expect("the pool listens");
    assert_eq!(slices.recv_timeout(DEADLINE).expect("the short one"), "b");
    assert_eq!((pool.statistics().queued, pool.statistics().queued_bytes), (1, LONG + 6));
    pool.withdraw(ticket);
    assert_eq!(results.try_recv().expect("it is withdrawn at once"), Some(FailureReason::Withdrawn));
    pass.send(()).expect("the pool listens");
}

#[test]
fn a_begun_prompt_fails_when_the_pool_stops() {
    let (pool, pass, slices) = gated();
    let (sender, results) = channel();
    let report = move |result: Result<_, TokenizeError>| {
        sender.send(result.map_err(|error| error.reason()).err()).expect("the test listens");
    };
    submit(&pool, long("A|||||"), report).expect("room");
    slices.recv_timeout(DEADLINE).expect("the first slice");
    let pool = Arc::new(pool);
    let stopping = std::thread::spawn({
        let pool = Arc::clone(&pool);
        move || pool.stop()
    });
    wait_for("the pool stopping", DEADLINE, || submit(&pool, text("b|"), |_| {}).is_err().then_some(()));
    pass.send(()).expect("the pool listens");
    assert_eq!(results.recv_timeout(DEADLINE).expect("the callback is called"), Some(FailureReason::Stopped));
    stopping.join().expect("it stops");
}

/// A tokenizer whose texts begin with a piece that cannot be cut. The piece waits until the test releases it.
#[derive(Clone)]
struct Uncut {
    passes: Arc<Mutex<Receiver<()>>>,
    begun: Sender<()>,
    is_before_piece: bool,
}

impl ModelTokenizer for Uncut {
    fn tokenize(
        &self,
        prompt: Prompt,
        _: PromptOptions,
        _: &Arc<PieceCache>,
        _: Effort,
    ) -> Result<Tokenization, TokenizeError> {
        let Prompt::Text(text) = prompt else { panic!("only texts") };
        let is_short = text == "short";
        Ok(if is_short { Tokenization::Done(vec![2]) } else { Tokenization::Sliced(Box::new(self.clone())) })
    }
}

impl SlicedTokenization for Uncut {
    fn step(&mut self) -> Result<Option<Vec<u32>>, TokenizeError> {
        if !self.is_before_piece {
            self.is_before_piece = true;
            return Ok(None);
        }
        self.begun.send(()).expect("the test listens");
        self.passes.lock().recv_timeout(DEADLINE).expect("the test lets it pass");
        Ok(Some(vec![1]))
    }

    fn is_before_uncut_piece(&self) -> bool {
        self.is_before_piece
    }
}

#[test]
fn no_prompt_waits_for_a_long_piece_that_cannot_be_cut() {
    let ((pass, passes), (begun, pieces)) = (channel(), channel());
    let tokenizer = Uncut { passes: Arc::new(Mutex::new(passes)), begun, is_before_piece: false };
    let source =
        Scripted(move |_: &str| -> Result<Arc<dyn ModelTokenizer>, LoadError> { Ok(Arc::new(tokenizer.clone())) });
    let pool =
        TokenizerPool::start(vec![Box::new(source)], &PoolOptions { workers: 1, ..forgetful() }).expect("threads");
    let (sender, results) = channel();
    let submit = |name: &'static str| {
        let sender = sender.clone();
        let report = move |result: Result<flash_indexer_prompt::tokenize::Tokenized, TokenizeError>| {
            let outcome = result.map(|tokenized| tokenized.ids).map_err(|error| error.reason());
            sender.send((name, outcome)).expect("the test listens");
        };
        submit(&pool, text(name), report).expect("room")
    };
    submit("first");
    pieces.recv_timeout(DEADLINE).expect("the first piece");
    let second = submit("second");
    submit("short");
    assert_eq!(results.recv_timeout(DEADLINE).expect("a result"), ("short", Ok(vec![2])));
    wait_for("the second one to be queued", DEADLINE, || (pool.statistics().queued == 1).then_some(()));
    assert!(pieces.try_recv().is_err(), "one such piece at a time");
    pool.withdraw(second);
    assert_eq!(results.try_recv().expect("it is withdrawn at once"), ("second", Err(FailureReason::Withdrawn)));
    pass.send(()).expect("the pool listens");
    assert_eq!(results.recv_timeout(DEADLINE).expect("a result"), ("first", Ok(vec![1])));
}

/// A tokenizer whose texts, except `short`, take long to render. The rendering waits until the test releases it.
#[derive(Clone)]
struct SlowTemplate {
    passes: Arc<Mutex<Receiver<()>>>,
    begun: Sender<()>,
}

impl ModelTokenizer for SlowTemplate {
    fn tokenize(
        &self,
        prompt: Prompt,
        _: PromptOptions,
        _: &Arc<PieceCache>,
        effort: Effort,
    ) -> Result<Tokenization, TokenizeError> {
        match (&prompt, effort) {
            (Prompt::Text(text), _) if text == "short" => Ok(Tokenization::Done(vec![2])),
            (_, Effort::Brief) => Ok(Tokenization::TooLong(prompt)),
            (_, Effort::Full) => {
                self.begun.send(()).expect("the test listens");
                self.passes.lock().recv_timeout(DEADLINE).expect("the test lets it pass");
                Ok(Tokenization::Done(vec![1]))
            }
        }
    }
}

#[test]
fn no_prompt_waits_for_a_chat_that_takes_long_to_render() {
    let ((pass, passes), (begun, renderings)) = (channel(), channel());
    let tokenizer = SlowTemplate { passes: Arc::new(Mutex::new(passes)), begun };
    let source =
        Scripted(move |_: &str| -> Result<Arc<dyn ModelTokenizer>, LoadError> { Ok(Arc::new(tokenizer.clone())) });
    let pool =
        TokenizerPool::start(vec![Box::new(source)], &PoolOptions { workers: 1, ..forgetful() }).expect("threads");
    let (sender, results) = channel();
    let submit = |prompt: &str| {
        let sender = sender.clone();
        let report = move |result: Result<flash_indexer_prompt::tokenize::Tokenized, TokenizeError>| {
            sender
                .send(result.map(|tokenized| tokenized.ids).map_err(|error| error.reason()))
                .expect("the test listens");
        };
        submit(&pool, text(prompt), report).expect("room")
    };
    submit("a chat");
    renderings.recv_timeout(DEADLINE).expect("the rendering begins");
    let waiting = submit("a second chat");
    for _ in 0..20 {
        submit("short");
        assert_eq!(results.recv_timeout(DEADLINE).expect("a result"), Ok(vec![2]));
    }
    assert_eq!(pool.statistics().queued, 1, "one rendering at a time for one or two workers");
    pool.withdraw(waiting);
    assert_eq!(results.recv_timeout(DEADLINE).expect("at once"), Err(FailureReason::Withdrawn));
    pass.send(()).expect("the pool listens");
    assert_eq!(results.recv_timeout(DEADLINE).expect("a result"), Ok(vec![1]));
}
