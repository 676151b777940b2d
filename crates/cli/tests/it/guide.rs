//! The guide does what it says: each page of both languages is run as the READMEs are, and the two teach the same.

use crate::pages::{
    blocks, every_command_prints_what_is_shown, folder, links_lead_somewhere, prose_and_blocks, read,
    repository, show_the_same,
};

const BOOKS: [&str; 2] = ["docs/guide/en/src", "docs/guide/zh-CN/src"];

/// The pages that a book lists, in order.
fn pages(book: &str) -> Vec<String> {
    let summary = read(&format!("{book}/SUMMARY.md"));
    let targets = summary.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(to, _)| to.trim_start_matches("./").to_owned()).collect()
}

fn of_every_page(check: impl Fn(&str)) {
    for book in BOOKS {
        pages(book).iter().for_each(|page| check(&format!("{book}/{page}")));
    }
}

#[test]
fn every_command_prints_what_the_guide_shows() {
    for book in BOOKS {
        // one page after the other in one folder, as a reader has it
        let folder = folder();
        for page in pages(book) {
            let commands = every_command_prints_what_is_shown(&format!("{book}/{page}"), folder.path());
            // the course is run by its own test
            assert!(commands > 0 || page == "course.md", "{page} has nothing to try");
        }
    }
}

#[test]
fn every_link_of_the_guide_leads_somewhere() {
    of_every_page(links_lead_somewhere);
}

#[test]
fn both_languages_teach_the_same() {
    let [english, chinese] = BOOKS.map(pages);
    assert_eq!(english, chinese, "the same pages in the same order");
    for page in english {
        show_the_same(&format!("{}/{page}", BOOKS[0]), &format!("{}/{page}", BOOKS[1]));
    }
}

/// The ledger that a page shows is the one that its commands read.
#[test]
fn the_claim_that_is_shown_is_the_file() {
    for book in BOOKS {
        let [(_, lines)] = blocks(&read(&format!("{book}/reconcile.md")), "json").try_into().unwrap();
        assert_eq!(lines.join("\n") + "\n", read("docs/guide/claim.json"));
    }
}

#[test]
fn no_page_is_left_out_of_its_book() {
    for book in BOOKS {
        let files = std::fs::read_dir(repository().join(book)).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut there: Vec<String> =
            names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md").collect();
        let mut listed = pages(book);
        there.sort();
        listed.sort();
        assert_eq!(there, listed, "{book}/SUMMARY.md");
    }
}

/// A size as the tool prints one, `1.76 GiB`, that a page's own output does not have would be made up, or out of date.
#[test]
fn every_size_in_the_text_comes_from_a_command() {
    of_every_page(|page| {
        let text = read(page);
        let (prose, blocks) = prose_and_blocks(&text);
        for line in prose {
            for size in sizes(line) {
                assert!(
                    blocks.iter().any(|line| sizes(line).contains(&size)),
                    "{page}: no command prints {size}: {line}"
                );
            }
        }
    });
}

/// The sizes with two digits after the point.
fn sizes(line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split([' ', '(', ')', ',', '，', '。', '、', '：', ':', '*']).collect();
    let is_figure = |word: &str| {
        word.trim_start_matches(['+', '-']).rsplit_once('.').is_some_and(|(whole, part)| {
            part.len() == 2 && [whole, part].iter().all(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let unit = |word: &str| units.into_iter().find(|unit| word.starts_with(unit));
    let pairs = words.windows(2).filter(|pair| is_figure(pair[0]));
    pairs
        .filter_map(|pair| Some(format!("{} {}", pair[0].trim_start_matches(['+', '-']), unit(pair[1])?)))
        .collect()
}

#[test]
fn sizes_are_found_in_a_line() {
    assert_eq!(sizes("It is 1.76 GiB, not 2 GiB, by +80.00 MiB."), ["1.76 GiB", "80.00 MiB"]);
    assert_eq!(sizes("**低 80.00 MiB。** 那一行写的正是 1.76 GiB。"), ["80.00 MiB", "1.76 GiB"]);
}
