//! In: a page with a canvas `viewer`; out: the viewer on it. Traces come from the addresses behind the page's `?`,
//! divided by `&`, and by being dropped; what is written is a download. Models are not run in a browser.

use eframe::egui::DroppedFileHandle;
use eframe::{WebOptions, WebRunner};
use js_sys::{Array, Uint8Array};
use kiln_viewer::app::{Viewer, style};
use kiln_viewer::files::{Files, Later};
use kiln_viewer::live::panel::Live;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Blob, HtmlAnchorElement, HtmlCanvasElement, Response, Url};

/// Starts the viewer. What keeps it from starting is written on the page.
pub fn main() {
    spawn_local(async {
        if let Err(error) = start().await {
            let body = web_sys::window().and_then(|w| w.document()).and_then(|d| d.body());
            if let Some(body) = body {
                body.set_text_content(Some(&format!("The viewer did not start: {}", words(&error))));
            }
        }
    });
}

async fn start() -> Result<(), JsValue> {
    let window = web_sys::window().ok_or("this is no page")?;
    let canvas = window.document().and_then(|d| d.get_element_by_id("viewer")).ok_or("no element `viewer`")?;
    let canvas: HtmlCanvasElement = canvas.dyn_into().map_err(|_| "the element `viewer` is no canvas")?;
    let addresses = window.location().search()?;
    let addresses: Vec<String> =
        addresses.trim_start_matches('?').split('&').filter(|a| !a.is_empty()).map(str::to_owned).collect();
    let create: eframe::AppCreator<'static> = Box::new(move |creation| {
        style(&creation.egui_ctx);
        let mut viewer = Viewer::new(creation.storage, Box::new(Page), Live::without_backend());
        let decoded = addresses.iter().map(|a| js_sys::decode_uri_component(a).map(String::from));
        let decoded: Vec<String> = decoded.collect::<Result<_, _>>().map_err(|e| words(&e))?;
        viewer.open(&decoded, &creation.egui_ctx);
        Ok(Box::new(viewer))
    });
    WebRunner::new().start(canvas, WebOptions::default(), create).await
}

fn words(error: &JsValue) -> String {
    error.as_string().unwrap_or_else(|| format!("{error:?}"))
}

/// What a page can reach.
struct Page;

async fn fetch(address: String) -> Result<Vec<u8>, String> {
    let said = |e: JsValue| format!("{address}: {}", words(&e));
    let window = web_sys::window().ok_or("this is no page")?;
    let answer = JsFuture::from(window.fetch_with_str(&address)).await.map_err(said)?;
    let answer: Response = answer.dyn_into().map_err(said)?;
    if !answer.ok() {
        return Err(format!("{address}: the server says {} {}", answer.status(), answer.status_text()));
    }
    let bytes = JsFuture::from(answer.array_buffer().map_err(said)?).await.map_err(said)?;
    Ok(Uint8Array::new(&bytes).to_vec())
}

impl Files for Page {
    fn read(&self, path: &str) -> Later<Result<Vec<u8>, String>> {
        Box::pin(fetch(path.to_owned()))
    }

    fn dropped(&self, file: DroppedFileHandle) -> Later<Result<Vec<u8>, String>> {
        Box::pin(async move { file.bytes_async().await.map_err(|e| format!("{}: {e}", file.path().display())) })
    }

    fn write(&self, stem: &str, extension: &str, bytes: &[u8]) -> Result<String, String> {
        let name = format!("{stem}.{extension}");
        let download = || -> Result<(), JsValue> {
            let parts = Array::of1(&Uint8Array::from(bytes));
            let url = Url::create_object_url_with_blob(&Blob::new_with_u8_array_sequence(&parts)?)?;
            let document = web_sys::window().and_then(|w| w.document()).ok_or("this is no page")?;
            let link: HtmlAnchorElement = document.create_element("a")?.dyn_into().map_err(JsValue::from)?;
            link.set_href(&url);
            link.set_download(&name);
            link.click();
            Url::revoke_object_url(&url)
        };
        download().map_err(|e| format!("{name}: {}", words(&e)))?;
        Ok(format!("{name}, among the browser's downloads"))
    }

    fn carry_out(&self, work: Later<()>) {
        spawn_local(work);
    }
}
