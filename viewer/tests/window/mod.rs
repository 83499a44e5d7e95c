//! In: a harness; out: whether it can draw as the kept pictures were drawn, and its pixels held against them.
#![allow(dead_code, reason = "each test binary uses its own part")]

use egui_kittest::{Harness, SnapshotOptions};

/// Whether the adapter is lavapipe. Where it is not, the test says so and is over, which `KILN_REQUIRE_ADAPTER` turns
/// into a failure if there is no adapter at all.
pub fn draws() -> bool {
    use std::sync::OnceLock;
    static DRAWS: OnceLock<bool> = OnceLock::new();
    *DRAWS.get_or_init(|| {
        let adapters = pollster::block_on(kiln::gpu::adapters());
        if adapters.is_empty() {
            assert!(std::env::var_os("KILN_REQUIRE_ADAPTER").is_none(), "no adapter draws");
            println!("skipped: no adapter");
            return false;
        }
        let software = adapters.iter().any(|a| a.name.contains("llvmpipe"));
        if !software {
            println!("skipped: pixels are compared on lavapipe alone");
        }
        software
    })
}

/// Draws and compares.
pub fn pixels<T>(harness: &mut Harness<'_, T>, name: &str, options: &SnapshotOptions) {
    harness.snapshot_options(name, options);
}
