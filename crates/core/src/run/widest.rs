//! Vector code for the processor on which the program runs.

/// Runs `work` compiled for the widest vectors of this processor. Everything that `work` calls must be inlined.
#[inline]
pub(super) fn widest<T>(work: impl FnOnce() -> T) -> T {
    struct Work<F>(F);
    impl<T, F: FnOnce() -> T> pulp::NullaryFnOnce for Work<F> {
        type Output = T;
        #[inline(always)]
        fn call(self) -> T {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Work(work))
}
