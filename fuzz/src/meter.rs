//! How much memory a function reserves.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which counts what each thread has reserved. What is only reserved and never
/// touched counts too: a failed reservation ends the process.
#[derive(Debug)]
pub struct Meter;

thread_local! {
    /// Signed, because a thread may free what another has reserved.
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

impl Meter {
    /// What `f` returns, and the most bytes it had reserved at one time.
    pub fn peak_of<T>(f: impl FnOnce() -> T) -> (T, usize) {
        let before = NOW.get();
        PEAK.set(before);
        let result = f();
        (result, usize::try_from(PEAK.get() - before).unwrap_or(0))
    }

    fn count(bytes: isize) {
        // A thread that ends frees the last of its memory when its counters are gone.
        let _ = NOW.try_with(|now| {
            now.set(now.get() + bytes);
            let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
        });
    }
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

// SAFETY: every call is passed on to the system's allocator as it came; counting neither reserves memory nor
// panics.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(signed(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(signed(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::count(-signed(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) };
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(signed(size) - signed(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
