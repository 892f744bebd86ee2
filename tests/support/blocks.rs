//! The code in a document.

/// What stands between fences.
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) text: String,
}

/// A document's blocks, and its text without them.
pub(crate) fn parts(document: &str) -> (Vec<Block>, String) {
    let (mut blocks, mut prose): (Vec<Block>, String) = Default::default();
    let mut inside = false;
    for line in document.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            inside = !inside;
            if inside {
                let (language, text) = (language.to_owned(), String::new());
                blocks.push(Block { language, text });
            }
            continue;
        }
        let text = match blocks.last_mut().filter(|_| inside) {
            Some(block) => &mut block.text,
            None => &mut prose,
        };
        text.push_str(line);
        text.push('\n');
    }
    assert!(!inside, "a fence is not closed");
    (blocks, prose)
}
