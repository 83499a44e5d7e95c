//! In: `kiln-viewer [TRACE.json ...]`, or in a browser the addresses of traces behind the page's `?`; out: the viewer in
//! a native window, or on the page's canvas.

#[cfg(not(target_arch = "wasm32"))]
mod native;
#[cfg(target_arch = "wasm32")]
mod web;

#[cfg(not(target_arch = "wasm32"))]
fn main() -> std::process::ExitCode {
    native::main()
}

#[cfg(target_arch = "wasm32")]
fn main() {
    web::main();
}
