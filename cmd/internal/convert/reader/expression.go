package reader

import "regexp"

// dollars matches what begins an escape, a class, or is a dollar sign.
var dollars = regexp.MustCompile(`(?s)\\.|\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]|\$`)

// Expression returns an expression of PCRE as RE2 has it: $ is also before a newline that ends the text.
func Expression(text string) string {
	return dollars.ReplaceAllStringFunc(text, func(s string) string {
		if s == "$" {
			return `\n?$`
		}
		return s
	})
}
