//! In: every Rust file under src/; out: a failure for each path from one stage to another that the design forbids.
//! Knows the crate as text alone.

mod source;

use source::{Token, module_of, paths, tokens};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A module at the root of the crate and those that it may know beside itself. A module that may know all is in
/// [`TOP`], one that is in neither table is refused.
const ALLOWED: &[(&str, &[&str])] = &[
    // what every other stage speaks of, so it speaks of none
    ("graph", &[]),
    // host data carries the graph's types
    ("tensor", &["graph"]),
    // plain numbers about a device
    ("caps", &[]),
    // models are calls of the Builder, checkpoints become tensors; neither kernels nor devices
    ("model", &["graph", "tensor"]),
    // before differentiation: no fused ops, no devices, no memory
    ("lift", &["graph"]),
    // a table of rules over the graph's ops
    ("grad", &["graph"]),
    // puts a forward graph, its gradients and an optimiser together: ops and names alone
    ("train", &["graph", "grad"]),
    // after differentiation: no WGSL, no workgroup sizes
    ("fuse", &["graph"]),
    // one node at a time: types, chains and limits; no buffers
    ("kernel", &["graph", "caps"]),
    // the match of ops to kernels, under a device's limits; no buffers
    ("select", &["graph", "kernel", "caps"]),
    // sees selected tensors, launches and operands, not how a kernel is written
    ("plan", &["graph", "select", "kernel", "caps"]),
    // ids and sizes only: what ops mean is behind it
    ("record", &["plan", "select", "kernel", "caps"]),
    // plays a recording; tensors are what it uploads and reads back
    ("gpu", &["record", "kernel", "caps", "trace", "tensor"]),
    // launches candidates of what select has chosen and times them; not what ops mean
    ("tune", &["graph", "select", "kernel", "plan", "record", "gpu", "caps", "cache"]),
    // bytes and names of files
    ("cache", &[]),
    // the common language of library, benches and viewer
    ("trace", &[]),
    // shows whatever it is given
    ("debug", &[]),
    // the oracle computes any graph on host data
    ("reference", &["graph", "tensor"]),
];

/// Where the stages are put together: these may know all. `lib` is the crate's root.
const TOP: &[&str] = &["lib", "session", "trainer", "measure", "error"];

/// The only folder that may name wgpu.
const GPU: &str = "gpu/";

/// Where `unsafe` may stand: calls that wgpu marks so, and the memory map of a checkpoint.
const UNSAFE: &[&str] = &[GPU, "model/checkpoint.rs"];

/// What a file does that it may not. `file` is relative to src/, with forward slashes; `roots` are the modules at the
/// root of the crate: any other name there is one of `lib`'s re-exports.
fn faults(file: &str, text: &str, roots: &BTreeSet<String>) -> Vec<String> {
    let tokens = tokens(text);
    let module = module_of(file);
    let from = module.first().map_or("lib", String::as_str);
    let mut faults = BTreeSet::new();
    let mut fault = |line: usize, what: String| {
        faults.insert((line, what));
    };

    if !TOP.contains(&from) {
        match ALLOWED.iter().find(|(name, _)| *name == from) {
            None => fault(1, format!("{from} is in no table of tests/layers.rs; add what it may know")),
            Some((_, allowed)) => {
                for path in paths(&tokens, &module) {
                    let to = path.names.first().filter(|n| roots.contains(*n)).map_or("lib", String::as_str);
                    if to != from && !allowed.contains(&to) {
                        let names = path.names.join("::");
                        fault(path.line, format!("{from} may not know {to}: `crate::{names}`"));
                    }
                }
            }
        }
    }
    for (i, Token { text, line }) in tokens.iter().enumerate() {
        let next = tokens.get(i + 1).map_or("", |t| t.text.as_str());
        let last = i.checked_sub(1).map_or("", |i| tokens[i].text.as_str());
        let names_wgpu = text == "wgpu" && last != "::" && (next == "::" || last == "use" || last == "crate");
        if names_wgpu && !file.starts_with(GPU) {
            fault(*line, format!("only src/{GPU} may name wgpu"));
        }
        if text == "unsafe" && !UNSAFE.iter().any(|place| file.starts_with(place)) {
            fault(*line, format!("`unsafe` stands only in {}", UNSAFE.join(" and ")));
        }
    }
    faults.into_iter().map(|(line, what)| format!("src/{file}:{line}: {what}")).collect()
}

/// Every Rust file under `dir` with its path relative to `root`, sorted.
fn read(root: &Path, dir: &Path, out: &mut Vec<(String, String)>) {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            read(root, &path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let parts: Vec<_> = path.strip_prefix(root).unwrap().iter().map(|p| p.to_string_lossy()).collect();
            out.push((parts.join("/"), fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn no_stage_knows_what_the_design_forbids() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    read(&src, &src, &mut files);
    let roots: BTreeSet<String> = files.iter().filter_map(|(f, _)| module_of(f).into_iter().next()).collect();
    assert!(roots.contains("graph"), "src/ holds no graph: {roots:?}");
    let faults: Vec<String> = files.iter().flat_map(|(file, text)| faults(file, text, &roots)).collect();
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

fn check(file: &str, text: &str) -> Vec<String> {
    let roots = ALLOWED.iter().map(|(name, _)| *name).chain(["session", "error"]).map(String::from).collect();
    faults(file, text, &roots)
}

#[test]
fn a_forbidden_edge_is_reported_with_file_line_and_path() {
    assert_eq!(
        check("fuse/epilogue.rs", "use crate::graph::Op;\nuse crate::kernel::Launch;\n"),
        ["src/fuse/epilogue.rs:2: fuse may not know kernel: `crate::kernel::Launch`"]
    );
    assert_eq!(
        check("graph/op.rs", "use crate::{\n    graph::{Chain, DType},\n    caps::{self, DeviceCaps as C},\n};\n"),
        [
            "src/graph/op.rs:3: graph may not know caps: `crate::caps::DeviceCaps`",
            "src/graph/op.rs:3: graph may not know caps: `crate::caps`",
        ]
    );
    assert_eq!(
        check("record/lower.rs", "fn f(g: &super::super::graph::Graph) {}"),
        ["src/record/lower.rs:1: record may not know graph: `crate::graph::Graph`"]
    );
}

#[test]
fn super_is_resolved_from_the_module_that_says_it() {
    assert_eq!(check("graph/op.rs", "use super::{Chain, DType};"), [""; 0]);
    assert_eq!(
        check("graph/mod.rs", "mod a { use super::Graph; mod b { use super::super::Op; } } use self::a::X;"),
        [""; 0]
    );
    assert_eq!(
        check("graph/mod.rs", "mod a { fn f() {} } use super::model::Dnn;"),
        ["src/graph/mod.rs:1: graph may not know model: `crate::model::Dnn`"]
    );
    assert_eq!(check("trace.rs", "use super::caps;"), ["src/trace.rs:1: trace may not know caps: `crate::caps`"]);
}

#[test]
fn the_root_s_re_exports_and_globs_are_no_way_around() {
    assert_eq!(
        check("plan/mod.rs", "use crate::Session;"),
        ["src/plan/mod.rs:1: plan may not know lib: `crate::Session`"]
    );
    assert_eq!(check("plan/mod.rs", "use crate::*;"), ["src/plan/mod.rs:1: plan may not know lib: `crate::*`"]);
    assert_eq!(check("plan/mod.rs", "use crate as k;"), ["src/plan/mod.rs:1: plan may not know lib: `crate::`"]);
    assert_eq!(check("plan/mod.rs", "pub(crate) fn f() {} pub(super) fn g() {}"), [""; 0]);
    assert_eq!(check("session.rs", "use crate::{gpu, model::Dnn, Error};"), [""; 0]);
    assert_eq!(check("lib.rs", "pub use crate::graph::Graph;"), [""; 0]);
    assert_eq!(check("misc.rs", ""), ["src/misc.rs:1: misc is in no table of tests/layers.rs; add what it may know"]);
}

#[test]
fn wgpu_and_unsafe_stay_where_they_belong() {
    assert_eq!(check("plan/mod.rs", "fn f(d: &wgpu::Device) {}"), ["src/plan/mod.rs:1: only src/gpu/ may name wgpu"]);
    assert_eq!(check("session.rs", "use wgpu as w;"), ["src/session.rs:1: only src/gpu/ may name wgpu"]);
    assert_eq!(check("gpu/device.rs", "fn f(d: &wgpu::Device) { unsafe {} }"), [""; 0]);
    assert_eq!(
        check("tensor.rs", "fn f() {\n    unsafe {}\n}"),
        ["src/tensor.rs:2: `unsafe` stands only in gpu/ and model/checkpoint.rs"]
    );
    assert_eq!(check("model/checkpoint.rs", "unsafe { map() }"), [""; 0]);
}

#[test]
fn comments_and_strings_are_not_code() {
    let text = r####"
//! wgpu::Device, crate::kernel::Launch
/* unsafe /* crate::gpu::X */ wgpu::Y */
const A: &str = "crate::gpu::X \" unsafe";
const B: &str = r#"crate::gpu::X " wgpu::Y"#;
const C: &[u8] = b"unsafe";
const D: char = '"';
const E: char = '\'';
fn f<'a>(x: &'a str) -> &'a str { x }
"####;
    assert_eq!(check("fuse/mod.rs", text), [""; 0]);
}
