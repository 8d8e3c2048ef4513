//! Renders SVG as PNG, with a built-in font, so that machines without fonts produce the same
//! picture.

use std::sync::Arc;

use anyhow::{Context, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// Pixels per unit of the SVG, so that small text is sharp.
const SCALE: f32 = 2.0;

/// Renders pictures.
#[derive(Debug)]
pub(super) struct Painter {
    options: Options<'static>,
}

impl Painter {
    pub(super) fn new() -> Self {
        let mut fonts = fontdb::Database::new();
        fonts.load_font_data(dejavu::sans_condensed::regular().to_vec());
        fonts.load_font_data(dejavu::sans_condensed::bold().to_vec());
        // Whatever family a picture requests, it gets one of these two files.
        let family =
            fonts.faces().next().and_then(|face| face.families.first()).map(|family| family.0.clone());
        let family = family.unwrap_or_default();
        fonts.set_sans_serif_family(family.clone());
        // The last fallback.
        fonts.set_serif_family(family.clone());
        Self { options: Options { fontdb: Arc::new(fonts), font_family: family, ..Options::default() } }
    }

    /// The picture as PNG.
    pub(super) fn png(&self, svg: &str) -> Result<Vec<u8>> {
        let tree = Tree::from_str(svg, &self.options).context("the picture is not an SVG")?;
        let size = tree.size().to_int_size();
        let size = size.scale_by(SCALE).context("the picture has no size")?;
        let mut pixels = Pixmap::new(size.width(), size.height()).context("the picture is too large")?;
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        pixels.encode_png().context("could not write the picture as PNG")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(words: &str, size: u32) -> String {
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{size}" height="40"><text x="5" y="20" font-family="Nowhere">{words}</text></svg>"#
        )
    }

    #[test]
    fn words_are_drawn_without_the_fonts_of_the_system() {
        let painter = Painter::new();
        let drawn = |words: &str| {
            let png = painter.png(&picture(words, 60)).unwrap();
            let pixels = Pixmap::decode_png(&png).unwrap();
            assert_eq!((pixels.width(), pixels.height()), (120, 80));
            pixels.pixels().iter().filter(|pixel| pixel.alpha() > 0).count()
        };
        assert_eq!(drawn(""), 0);
        // The font must have these letters and signs: missing ones would be left out.
        for letter in ["a", "µ", "×", "→", "←", "…", "⁻", "–"] {
            assert!(drawn(letter) > 10, "{letter}");
        }
    }

    #[test]
    fn what_is_no_picture_is_an_error() {
        let painter = Painter::new();
        assert!(painter.png("<svg").is_err());
        assert!(painter.png(&picture("", 0)).is_err());
    }
}
