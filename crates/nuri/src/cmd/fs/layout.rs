//! `nuri fs layout`: how a file lies on targets, and how new ones of a directory will.

use std::path::Path;

use nuri_proto::layout::Shape;
use rustix::fs::XattrFlags;

use super::{attribute, fields};
use crate::show::print_json;
use crate::{Failure, at};

pub(super) const LAYOUT_ATTRIBUTE: &str = "nuri.layout";

pub(super) fn get(path: &Path, json: bool) -> Result<(), Failure> {
    let text = attribute(path, LAYOUT_ATTRIBUTE)?;
    if !json {
        println!("{text}");
        return Ok(());
    }
    print_json(&fields(&text))
}

pub(super) fn set(
    path: &Path,
    chunk_size: Option<u64>,
    width: Option<u16>,
    shape: Option<Shape>,
) -> Result<(), Failure> {
    if chunk_size.is_none() && width.is_none() && shape.is_none() {
        return Err(Failure("say what to set: --chunk-size, --width or --shape".into()));
    }
    let old = attribute(path, LAYOUT_ATTRIBUTE)?;
    let field = |key: &str| {
        let found = old.split_whitespace().find_map(|w| w.strip_prefix(key));
        found.and_then(|v| v.strip_prefix('=')).unwrap_or_default().to_string()
    };
    let shape = shape.map_or_else(|| field("shape"), |s| s.to_string());
    let size = chunk_size.map_or_else(|| field("chunk_size"), |n| n.to_string());
    let bytes: u64 = size.parse().map_err(at("the chunk size"))?;
    let small = u32::try_from(bytes).unwrap_or(u32::MAX);
    nuri_proto::layout::ChunkSize::try_from(small).map_err(Failure::new)?;
    let width = width.map_or_else(|| field("width"), |n| n.to_string());
    let text = format!("shape={shape} chunk_size={size} width={width}");
    let set = rustix::fs::setxattr(path, LAYOUT_ATTRIBUTE, text.as_bytes(), XattrFlags::empty());
    set.map_err(|e| match e {
        rustix::io::Errno::NOTDIR => {
            let path = path.display();
            Failure(format!(
                "{path} has data, which lies as it does; convert it: nuri fs convert --shape SHAPE \
                 {path}"
            ))
        }
        rustix::io::Errno::INVAL => {
            Failure(format!("{shape} needs more targets than the space has: nuri target list"))
        }
        e => Failure(format!("{} refuses the layout: {e}", path.display())),
    })
}
