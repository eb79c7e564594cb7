#include "tools/kut/shell_words.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tools/run/relay.h"

namespace aerie::tools {
namespace {

constexpr absl::string_view kBlanks = " \t\n";

class Splitter {
 public:
  Splitter(absl::string_view text, const ShellEnvironment& environment)
      : text_{text}, environment_{environment} {}

  absl::StatusOr<std::vector<std::string>> split() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      absl::Status status;
      if (kBlanks.find(c) != absl::string_view::npos) {
        end_word();
        ++at_;
      } else if (c == '\'') {
        status = single_quoted();
      } else if (c == '"') {
        status = double_quoted();
      } else if (c == '\\') {
        ++at_;
        if (at_ < text_.size()) {
          if (text_[at_] != '\n') {
            add(text_[at_]);
          }
          ++at_;
        }
      } else if (c == '$' && text_.substr(at_, 2) == "$'") {
        status = ansi_quoted();
      } else if (c == '`' || c == '$') {
        absl::StatusOr<std::string> value = expansion();
        status = value.status();
        if (status.ok()) {
          add_split(*value);
        }
      } else {
        add(c);
        ++at_;
      }
      if (!status.ok()) {
        return status;
      }
    }
    end_word();
    return std::move(words_);
  }

 private:
  void add(char c) {
    word_ += c;
    in_word_ = true;
  }
  void end_word() {
    if (in_word_) {
      words_.push_back(std::move(word_));
    }
    word_.clear();
    in_word_ = false;
  }
  void add_split(absl::string_view value) {
    for (const char c : value) {
      if (kBlanks.find(c) != absl::string_view::npos) {
        end_word();
      } else {
        add(c);
      }
    }
  }
  absl::Status unclosed(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("unclosed ", what, " in: ", text_));
  }

  absl::Status single_quoted() {
    const std::size_t end = text_.find('\'', at_ + 1);
    if (end == absl::string_view::npos) {
      return unclosed("'");
    }
    absl::StrAppend(&word_, text_.substr(at_ + 1, end - at_ - 1));
    in_word_ = true;
    at_ = end + 1;
    return absl::OkStatus();
  }

  absl::Status double_quoted() {
    in_word_ = true;
    for (++at_; at_ < text_.size();) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return absl::OkStatus();
      }
      if (c == '\\' && at_ + 1 < text_.size() &&
          absl::string_view{"\"\\$`\n"}.find(text_[at_ + 1]) != absl::string_view::npos) {
        if (text_[at_ + 1] != '\n') {
          word_ += text_[at_ + 1];
        }
        at_ += 2;
      } else if (c == '`' || c == '$') {
        absl::StatusOr<std::string> value = expansion();
        if (!value.ok()) {
          return value.status();
        }
        word_ += *value;
      } else {
        word_ += c;
        ++at_;
      }
    }
    return unclosed("\"");
  }

  absl::Status ansi_quoted() {
    in_word_ = true;
    for (at_ += 2; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\'') {
        ++at_;
        return absl::OkStatus();
      }
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        const char c = text_[++at_];
        word_ += c == 'n' ? '\n' : c == 't' ? '\t' : c;
      } else {
        word_ += text_[at_];
      }
    }
    return unclosed("$'");
  }

  // At a backtick or a dollar sign: the value of what stands there.
  absl::StatusOr<std::string> expansion() {
    if (text_[at_] == '`') {
      std::string command;
      for (++at_; at_ < text_.size(); ++at_) {
        if (text_[at_] == '`') {
          ++at_;
          return run(command);
        }
        if (text_[at_] == '\\' && at_ + 1 < text_.size() &&
            absl::string_view{"`\\$"}.find(text_[at_ + 1]) != absl::string_view::npos) {
          ++at_;
        }
        command += text_[at_];
      }
      return unclosed("`");
    }
    ++at_;
    if (at_ < text_.size() && text_[at_] == '(') {
      int depth = 0;
      const std::size_t begin = at_ + 1;
      for (; at_ < text_.size(); ++at_) {
        depth += text_[at_] == '(' ? 1 : text_[at_] == ')' ? -1 : 0;
        if (depth == 0) {
          return run(std::string{text_.substr(begin, at_++ - begin)});
        }
      }
      return unclosed("$(");
    }
    const bool braces = at_ < text_.size() && text_[at_] == '{';
    at_ += braces ? 1 : 0;
    std::string name;
    while (at_ < text_.size() &&
           (absl::ascii_isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) {
      name += text_[at_++];
    }
    if (braces) {
      if (at_ >= text_.size() || text_[at_] != '}') {
        return unclosed("${");
      }
      ++at_;
    }
    return name.empty() ? "$" : environment_.variable(name);
  }

  absl::StatusOr<std::string> run(const std::string& command) {
    absl::StatusOr<std::string> output = environment_.run(command);
    if (output.ok()) {
      while (!output->empty() && output->back() == '\n') {
        output->pop_back();
      }
    }
    return output;
  }

  absl::string_view text_;
  const ShellEnvironment& environment_;
  std::size_t at_ = 0;
  std::vector<std::string> words_;
  std::string word_;
  bool in_word_ = false;
};

absl::StatusOr<std::string> run_shell(const std::string& command) {
  absl::StatusOr<Subprocess> process =
      Subprocess::start({.command = {"/bin/sh", "-c", command}, .inherited = {}, .directory = {}});
  if (!process.ok()) {
    return process.status();
  }
  std::string output;
  const RelayEnd end =
      relay(*process,
            {.sources = {{process->standard_output().get(),
                          [&output](absl::string_view bytes) {
                            absl::StrAppend(&output, bytes);
                            return true;
                          }},
                         {process->standard_error().get(), [](absl::string_view) { return true; }}},
             .standard_input = false,
             .timeout_seconds = 10});
  if (end != RelayEnd::exited) {
    return absl::DeadlineExceededError(absl::StrCat("`", command, "` does not end"));
  }
  return output;
}

}  // namespace

const ShellEnvironment& real_shell_environment() {
  static const ShellEnvironment environment = {
      .run = run_shell,
      .variable =
          [](const std::string& name) {
            const char* value = std::getenv(name.c_str());
            return std::string{value != nullptr ? value : ""};
          },
  };
  return environment;
}

absl::StatusOr<std::vector<std::string>> split_shell_words(absl::string_view text,
                                                           const ShellEnvironment& environment) {
  return Splitter{text, environment}.split();
}

}  // namespace aerie::tools
