package manual

import "strings"

var special = strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "`", "\\`", "<", `\<`, ">", `\>`, "[", `\[`, "]", `\]`, "~", `\~`, "|", `\|`, "#", `\#`)

// escape returns plain text as Markdown that means it literally.
func escape(text string) string { return special.Replace(text) }

// prose returns the paragraphs of a help text as Markdown. A paragraph that is
// indented is kept line by line.
func prose(text string) string {
	var b strings.Builder
	for p := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		if strings.HasPrefix(p, " ") {
			b.WriteString(code(p))
		} else {
			b.WriteString(escape(p) + "\n\n")
		}
	}
	return b.String()
}

// code returns lines as a block that is kept as it is.
func code(text string) string {
	return "```\n" + strings.Trim(text, "\n") + "\n```\n\n"
}
