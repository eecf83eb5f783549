"""The numbered cases of the format page (topics.md 2.1 and 2.2): the test that shows each, or why recalld does otherwise."""

import ast
from pathlib import Path

HERE = Path(__file__).parent

TAKEN: dict[str, str] = {
    "21": "test_a_slug_is_of_ascii_letters_and_digits_or_else_of_the_names_own_script",
    "22": "test_what_is_no_entry_stays_as_a_line",
    "23": "test_a_line_with_an_unsafe_file_is_quarantined_and_never_injected",
    "24": "test_a_line_with_an_unsafe_file_is_quarantined_and_never_injected",
    "25": "test_a_new_topic_is_a_file_and_a_canonical_line_with_a_whole_stamp",
    "26": "test_appending_keeps_the_body_and_puts_the_content_under_the_full_local_stamp",
    "27": "test_replacing_drops_the_body_without_a_heading_however_often",
    "29": "test_a_write_can_pin_and_never_unpins",
    "30": "test_a_name_that_would_break_or_hide_in_its_index_line_is_refused",
    "31": "test_a_summary_cannot_forge_a_line_a_pin_or_an_age",
    "32": "test_a_summary_is_cut_to_500_and_the_same_in_index_and_front_matter",
    "33": "test_every_spelling_of_the_retired_recap_is_refused",
    "34": "test_a_name_of_a_file_that_means_something_else_is_refused",
    "35": "test_names_that_slug_alike_get_files_of_their_own_and_keep_them",
    "36": "test_a_removed_topics_file_is_left_alone_by_another_name_and_its_removal_stays",
    "37": "test_writing_again_appends_and_replacing_replaces_with_the_description_of_now",
    "39": "test_a_write_that_cannot_publish_the_index_takes_the_topic_back",
    "40": "test_a_write_that_cannot_publish_the_index_takes_the_topic_back",
    "41": "test_pinning_and_unpinning_change_the_line_and_the_file_and_tell_both_lines",
    "42": "test_removing_takes_the_line_keeps_the_file_and_remembers",
    "43": "test_an_exact_name_or_file_name_wins_in_any_case_and_a_unique_part_does_too",
    "44": "test_an_unsafe_line_stays_in_the_file_and_is_never_acted_on",
    "45": "test_an_unsafe_line_stays_in_the_file_and_is_never_acted_on",
    "46": "test_dropping_a_file_drops_all_its_lines_and_no_line_that_only_mentions_it",
    "47": "test_a_summary_cannot_forge_a_line_a_pin_or_an_age",
    "48": "test_a_topic_that_was_pinned_meanwhile_is_not_removed",
    "49": "test_a_removal_that_cannot_be_remembered_removes_nothing",
    "50": "test_each_write_remove_and_pin_tidies_the_index_and_no_read_does",
    "51": "test_of_two_lines_of_one_file_the_later_instant_wins_at_the_first_place_and_a_pin_is_kept",
    "52": "test_of_two_lines_of_one_file_the_later_instant_wins_at_the_first_place_and_a_pin_is_kept",
    "53": "test_rewriting_a_stale_topic_takes_the_flag_and_zero_days_flag_nothing",
    "54": "test_reading_in_every_way_creates_nothing",
    "55": "test_both_caps_and_the_size_before_the_cut_are_told",
    "56": "test_a_search_sees_the_first_part_of_a_file_and_120_characters_of_a_line",
    "57": "test_a_topic_is_read_without_its_front_matter",
    "58": "test_a_search_finds_each_topic_once_by_its_line_first_in_any_case",
    "59": "test_a_topic_that_is_no_regular_file_is_refused_and_what_it_points_to_unchanged",
    "60": "test_a_linked_index_is_refused",
    "61": "test_an_index_that_is_no_regular_file_is_refused_at_once",
    "71": "test_each_listed_topic_is_copied_as_it_is_with_its_line_and_the_local_side_stays",
    "72": "test_what_is_shared_already_stays_byte_for_byte",
    "73": "test_an_identical_file_is_not_copied_and_gets_its_line_if_that_is_missing",
    "74": "test_what_is_shared_already_stays_byte_for_byte",
    "75": "test_taken_suffixes_are_counted_up_and_a_suffix_of_choice_is_used",
    "76": "test_each_listed_topic_is_copied_as_it_is_with_its_line_and_the_local_side_stays",
    "77": "test_a_merge_is_done_once_and_what_is_written_later_stays_local",
    "78": "test_a_busy_directory_means_no_copy_and_no_sentinel_and_a_later_merge_succeeds",
    "79": "test_a_merge_that_broke_off_is_finished_by_the_next",
    "80": "test_a_removal_in_the_shared_directory_is_remembered_there_and_a_write_clears_it",
    "82": "test_two_workspaces_and_another_tool_share_a_directory_and_nothing_is_lost",
    "83": "test_a_lock_file_is_taken_only_from_a_holder_that_is_surely_gone",
    "84": "test_a_lock_that_stays_held_is_given_up_after_half_a_second_and_nothing_is_written",
    "85": "test_a_lock_file_that_is_replaced_while_it_is_judged_stays",
    "86": "test_a_process_of_another_user_counts_as_alive_and_a_dead_one_not",
    "87": "test_releasing_leaves_a_lock_file_that_is_not_ours",
    "88": "test_a_lock_that_is_no_regular_file_is_never_taken",
    "89": "test_a_lock_that_another_process_holds_briefly_is_waited_for",
    "90": "test_repairing_twice_changes_nothing_more",
    "91": "test_what_a_file_says_of_itself_cannot_act_in_the_index",
    "92": "test_status_names_everything_that_does_not_agree",
    "U1": "test_a_name_without_a_letter_or_digit_is_refused",
    "U2": "test_a_name_has_at_most_120_characters_and_its_slug_80_bytes",
    "U3": "test_a_name_that_would_break_or_hide_in_its_index_line_is_refused",
    "U4": "test_a_name_of_a_file_that_means_something_else_is_refused",
    "U5": "test_a_name_of_a_file_that_means_something_else_is_refused",
    "U6": "test_a_blank_name_names_no_topic_even_if_there_is_only_one",
    "U7": "test_two_topics_of_one_name_are_told_apart_only_by_file",
    "U8": "test_removing_takes_every_line_of_the_file",
    "U9": "test_a_summary_can_neither_pin_nor_age_nor_date_its_topic",
    "U10": "test_a_summary_can_neither_pin_nor_age_nor_date_its_topic",
    "U11": "test_a_stale_flag_follows_the_whole_stamp",
    "U12": "test_of_two_lines_of_one_file_the_later_instant_wins_at_the_first_place_and_a_pin_is_kept",
    "U13": "test_a_stale_flag_goes_where_it_is_not_true",
    "U14": "test_a_topic_is_stale_after_more_than_the_days_and_not_on_the_day",
    "U15": "test_status_names_everything_that_does_not_agree",
    "U16": "test_an_index_that_fits_is_given_as_it_stands",
    "U17": "test_whole_lines_within_both_caps_and_none_kept_that_ranks_below_an_omitted_one",
    "U18": "test_both_caps_and_the_size_before_the_cut_are_told",
    "U19": "test_line_ends_blank_runs_and_the_final_newline_are_normalised",
    "U26": "test_a_list_of_removed_topics_with_crlf_still_counts",
    "U28": "test_a_search_shows_a_hit_in_a_file_that_is_not_listed",
    "U29": "test_empty_unterminated_crlf_and_bom_front_matter_is_recognised",
    "U30": "test_unknown_keys_comments_and_lines_survive_a_write_verbatim_and_in_place",
    "U31": "test_content_is_never_taken_for_anything_else",
    "U32": "test_content_is_never_taken_for_anything_else",
    "U33": "test_a_file_that_is_not_utf8_is_never_rewritten_but_can_be_listed_pinned_and_removed",
    "U37": "test_an_index_that_is_no_regular_file_is_refused_at_once",
    "U38": "test_a_topic_that_is_no_regular_file_is_refused_and_what_it_points_to_unchanged",
    "U39": "test_the_later_line_wins_a_tie_and_a_dated_line_an_undated_one",
    "U40": "test_an_empty_summary_round_trips_and_an_empty_content_is_refused",
    "U41": "test_an_unsafe_line_stays_in_the_file_and_is_never_acted_on",
}

ELSEWHERE: dict[str, str] = {
    **dict.fromkeys([*map(str, range(1, 21)), "U20", "U21", "U22", "U23", "U24", "U25"], "test_rules.py"),  # memory.jsonc
    **dict.fromkeys([*map(str, range(62, 71)), "U34", "U35", "U36"], "test_handoff.py"),  # hand-over, compaction
}

OTHERWISE: dict[str, str] = {
    "28": "there is one way to say it: mode='replace'; `overwrite` was a name of before",
    "38": "a missing argument is refused by the type of the request (422), before the archive is asked",
    "81": "recalld never wrote a recap, so it has none to clean up; the name is refused, a line of another tool stays",
    "93": "there is no cache to be told about: each read opens the index anew; a switch of directory is an operation of its own",
    "94": "as 93: `.invalidate` is neither read nor written (the sample trees keep it byte for byte)",
    "U27": "a command's missing argument is the command's to refuse; the store refuses a blank name and a blank search",
    "U42": "a summary that is no text is refused by the type of the request (422)",
}


def names_of_tests() -> set[str]:
    return {
        node.name
        for path in HERE.glob("test_*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_case_of_the_format_page_has_its_test_or_its_reason():
    numbers = {*map(str, range(1, 95)), *(f"U{number}" for number in range(1, 43))}
    assert TAKEN.keys() | ELSEWHERE.keys() | OTHERWISE.keys() == numbers
    assert len(TAKEN) + len(ELSEWHERE) + len(OTHERWISE) == len(numbers)
    assert set(TAKEN.values()) <= names_of_tests()
    assert all((HERE / name).is_file() for name in ELSEWHERE.values())
