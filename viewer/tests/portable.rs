//! In: every Rust file of the viewer; out: a failure for each that names what a browser has not, outside the files that
//! are of one system alone. Knows the viewer as text.

use std::fs;
use std::path::Path;

/// Of one system alone: where it starts, and the runs on its devices.
const NATIVE: [&str; 4] = ["main.rs", "native.rs", "web.rs", "live/device.rs"];

/// What a browser has not, or has otherwise.
const NAMES: [&str; 14] = [
    "std::fs",
    "std::env",
    "std::process",
    "std::net",
    "std::os",
    "SystemTime",
    "fs::read",
    "File::",
    "run_native",
    "NativeOptions",
    "_blocking",
    "kiln::gpu",
    "kiln::session",
    "kiln::Session",
];

/// Threads and clocks of the system, which the thread that runs models has.
const OF_THREADS: [&str; 3] = ["std::thread", "Instant", "cfg(target_arch"];

/// Names that a file may not have, by its text without tests, with their lines.
fn faults(file: &str, text: &str) -> Vec<String> {
    let code = text.split("\n#[cfg(test)]").next().unwrap_or(text);
    let mut faults = Vec::new();
    for (i, line) in code.lines().enumerate().filter(|(_, l)| !l.trim_start().starts_with("//")) {
        let own = if file == "live/mod.rs" { &[][..] } else { &OF_THREADS[..] };
        for name in NAMES.iter().chain(own).filter(|name| line.contains(**name)) {
            faults.push(format!("src/{file}:{}: `{name}`", i + 1));
        }
    }
    faults
}

fn read(root: &Path, folder: &Path, out: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(root, &path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let parts: Vec<_> = path.strip_prefix(root).unwrap().iter().map(|p| p.to_string_lossy()).collect();
            out.push((parts.join("/"), fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn all_but_the_start_and_the_devices_can_be_built_for_a_browser() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    read(&root, &root, &mut files);
    for native in NATIVE {
        assert!(files.iter().any(|(file, _)| file == native), "{native} is no more");
    }
    let others = files.iter().filter(|(file, _)| !NATIVE.contains(&file.as_str()));
    let faults: Vec<String> = others.flat_map(|(file, text)| faults(file, text)).collect();
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn what_is_of_one_system_is_found() {
    let text =
        "//! std::fs\nuse std::fs;\nfn f() { let t = Instant::now(); }\n\n#[cfg(test)]\nmod tests { use std::env; }\n";
    assert_eq!(faults("app.rs", text), ["src/app.rs:2: `std::fs`", "src/app.rs:3: `Instant`"]);
    assert_eq!(faults("live/mod.rs", text), ["src/live/mod.rs:2: `std::fs`"]);
}
