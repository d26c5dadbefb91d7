/// Completions for bash 3.2 and later. What is not known here, such as a file, is completed as bash does by itself.
enum BashCompletions {
    static var script: String {
        #"""
        # bash completion for token-broker, printed by: token-broker completions bash
        _token_broker() {
            local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD - 1]}"
            local path="" next options="" valued=" " runs="" found="" first=1 index position=0
            COMPREPLY=()
            # --option=value is three words here.
            if [[ $current == "=" ]]; then
                current=""
            elif [[ $previous == "=" ]]; then
                previous="${COMP_WORDS[COMP_CWORD - 2]}"
            fi
            # Behind help stand the words of a command.
            if [[ ${COMP_WORDS[1]} == help && $COMP_CWORD -gt 1 ]]; then first=2; fi
            for ((index = first; index < COMP_CWORD; index++)); do
                next="${path:+$path }${COMP_WORDS[index]}"
                case "$next" in
        \#(paths)) path="$next" ;;
                *) break ;;
                esac
            done
            if [[ $first == 1 ]]; then
                case "$path" in
        \#(commands)        esac
            fi
            for (( ; index < COMP_CWORD; index++)); do
                next="${COMP_WORDS[index]}"
                if [[ $next == "--" ]]; then
                    if [[ -n $runs && $((index + 1)) == "$COMP_CWORD" ]]; then COMPREPLY=($(compgen -c -- "$current")); fi
                    return
                elif [[ $valued == *" $next "* ]]; then
                    if [[ ${COMP_WORDS[index + 1]} == "=" ]]; then ((index++)); fi
                    ((index++))
                elif [[ $next != -* ]]; then
                    ((position++))
                fi
            done
            if [[ $valued == *" $previous "* ]]; then
                case "$path $previous" in
        \#(choices { $0.contains(" --") })        esac
            elif [[ $current == -* ]]; then
                found="$options"
            elif [[ $position == 0 && $first == 2 && -z $path ]]; then
                found="\#(words("")) \#(words("help"))"
            else
                if [[ $position == 0 ]]; then
                    case "$path" in
        \#(groups)            esac
                fi
                if [[ $first == 1 ]]; then
                    case "$path $position" in
        \#(choices { !$0.contains(" --") })            esac
                fi
            fi
            COMPREPLY=($(compgen -W "$found" -- "$current"))
        }
        complete -o default -F _token_broker token-broker

        """#
    }

    private static var paths: String {
        "        " + CompletionWords.paths.map(ShellWord.inQuotes).joined(separator: " | \\\n        ")
    }

    private static var commands: String {
        CommandCatalog.all.map { command in
            let options = command.allOptions.map { "--" + $0.name }.joined(separator: " ")
            let valued = CompletionWords.valued(command).joined(separator: " ")
            return "        \(ShellWord.inQuotes(command.name))) options=\"\(options)\" valued=\" \(valued) \""
                + (command.takesCommand ? " runs=1" : "") + " ;;\n"
        }.joined()
    }

    private static var groups: String {
        CompletionWords.groups.map { before, _ in
            "            \(ShellWord.inQuotes(before))) found=\"\(words(before))\" ;;\n"
        }.joined()
    }

    private static func words(_ before: String) -> String {
        CompletionWords.all.filter { $0.before == before }.map(\.word).joined(separator: " ")
    }

    private static func choices(_ isWanted: (String) -> Bool) -> String {
        CompletionWords.choices.filter { isWanted($0.pattern) }.map { pattern, words in
            "            \(ShellWord.inQuotes(pattern))) found=\"\(words.joined(separator: " "))\" ;;\n"
        }.joined()
    }
}
