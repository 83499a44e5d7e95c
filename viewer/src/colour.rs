//! In: what something is; out: its colour on a dark or a light ground. Knows egui's colours alone.

use eframe::egui::{Color32, Visuals};

/// Kernels by kind, in the order of the legend.
const KINDS: [(&str, [u8; 3]); 12] = [
    ("matmul", [86, 145, 214]),
    ("attention", [232, 144, 72]),
    ("softmax", [176, 122, 210]),
    ("norm", [104, 180, 112]),
    ("elementwise", [70, 178, 178]),
    ("reduce", [222, 118, 148]),
    ("gather", [212, 184, 86]),
    ("scatter", [212, 184, 86]),
    ("adam", [206, 100, 100]),
    ("cross_entropy", [148, 136, 224]),
    ("fill", [152, 152, 160]),
    ("probe", [152, 152, 160]),
];

/// A kernel's colour, by the kind that its name begins with; forms of one kind look alike.
pub fn kernel(name: &str) -> Color32 {
    let [r, g, b] = KINDS.iter().find(|(kind, _)| name.starts_with(kind)).map_or([176, 160, 140], |(_, rgb)| *rgb);
    Color32::from_rgb(r, g, b)
}

/// What the host does.
pub fn host(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode { Color32::from_rgb(92, 104, 122) } else { Color32::from_rgb(184, 194, 208) }
}

/// What encloses other spans.
pub fn layer(visuals: &Visuals, depth: usize) -> Color32 {
    let shift = 12 * depth.min(3) as u8;
    match visuals.dark_mode {
        true => Color32::from_rgb(58 + shift, 64 + shift, 76 + shift),
        false => Color32::from_rgb(222 - shift, 226 - shift, 234 - shift),
    }
}

/// Time in which the device waits.
pub fn gap(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode { Color32::from_rgb(88, 40, 44) } else { Color32::from_rgb(248, 214, 212) }
}

/// What got faster.
pub fn better(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode { Color32::from_rgb(110, 196, 124) } else { Color32::from_rgb(28, 124, 52) }
}

/// What got slower, and errors.
pub fn worse(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode { Color32::from_rgb(236, 116, 108) } else { Color32::from_rgb(184, 40, 36) }
}

/// What is selected.
pub fn selected(visuals: &Visuals) -> Color32 {
    if visuals.dark_mode { Color32::WHITE } else { Color32::BLACK }
}

/// Black or white, whichever is read better on a ground.
pub fn text_on(ground: Color32) -> Color32 {
    // weights of ITU-R BT.601
    let luma = 0.299 * f32::from(ground.r()) + 0.587 * f32::from(ground.g()) + 0.114 * f32::from(ground.b());
    if luma > 120.0 { Color32::from_rgb(18, 20, 24) } else { Color32::from_rgb(240, 242, 246) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_kind_look_alike_and_texts_can_be_read() {
        assert_eq!(kernel("matmul_direct"), kernel("matmul"));
        assert_ne!(kernel("matmul"), kernel("attention"));
        assert_eq!(text_on(Color32::WHITE), Color32::from_rgb(18, 20, 24));
        assert_eq!(text_on(layer(&Visuals::dark(), 0)), Color32::from_rgb(240, 242, 246));
    }
}
