package source

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxExcerpt is the most bytes of a user's string that a message shows.
const maxExcerpt = 64

// Excerpt returns s as it may stand in a message: quoted, on one line, and cut
// when it is long.
func Excerpt(s string) string {
	if len(s) <= maxExcerpt {
		return strconv.Quote(s)
	}
	cut := maxExcerpt
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strconv.Quote(s[:cut]) + "..."
}

// Either lists words as a sentence does: "tcp, udp or sctp".
func Either(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// flagText returns the words of those flags that are set, joined by commas.
func flagText[F ~uint8](set F, each []F, words []string) string {
	var is []string
	for i, flag := range each {
		if set&flag != 0 {
			is = append(is, words[i])
		}
	}
	return strings.Join(is, ",")
}

// wordOf returns the word of a value, which has that number. One without a word has the first: what a later version of
// svcproxy kept of a server is read as it is.
func wordOf[E ~uint8](e E, words ...string) string {
	if int(e) >= len(words) {
		return words[0]
	}
	return words[e]
}

// Nearest returns the word that s was most likely meant to be, or "" when it is
// like none of them. Case does not count, and the beginning of a word of which
// three letters or more are there is as good as one slip. A word with another
// first letter must be more alike: nobody who writes host means port.
func Nearest(s string, words []string) string {
	if len(s) > maxExcerpt {
		return ""
	}
	best, least := "", 2+len(s)/4 // one slip in a short word, more in a long one
	for _, w := range words {
		if max(len(w)-len(s), len(s)-len(w)) >= least && !strings.HasPrefix(w, strings.ToLower(s)) {
			continue // at least as many letters to insert or leave out
		}
		d := distance(strings.ToLower(s), w)
		if w != "" && s != "" && strings.ToLower(s[:1]) != w[:1] && d >= 2+len(s)/5 {
			continue
		}
		if len(s) >= 3 && strings.HasPrefix(w, strings.ToLower(s)) {
			d = 1
		}
		if d < least && d < len(w) {
			best, least = w, d
		}
	}
	return best
}

// distance counts the letters to insert, leave out, replace or swap with their
// neighbour to make b of a (optimal string alignment).
func distance(a, b string) int {
	var before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j]+cost, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}

// MaxLabel is the length of the longest DNS label.
const MaxLabel = 63

// IsLabel reports whether s is a DNS label as Kubernetes takes it (RFC 1123): 1
// to 63 of a-z, 0-9 and "-", beginning and ending with a letter or digit.
func IsLabel(s string) bool {
	return len(s) <= MaxLabel && isWord(s, func(c byte) bool { return isLower(c) || c == '-' })
}

// Printable returns s with everything that is not plain to see written as Go would,
// so that it can stand in a log line or on a terminal.
func Printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRune(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}

// Clip returns s as it may stand on a page, in a log or in the environment of a program: Printable, and cut behind most
// characters.
func Clip(s string, most int) string {
	cut := len(s) > most*utf8.UTFMax
	if cut {
		s = s[:most*utf8.UTFMax]
	}
	s = Printable(strings.ToValidUTF8(s, "\uFFFD"))
	if cut || utf8.RuneCountInString(s) > most {
		runes := []rune(s)
		return string(runes[:min(len(runes), most)]) + "…"
	}
	return s
}

// IsName reports whether s can name a node or a zone: 1 to 253 of a-z, A-Z, 0-9,
// "-", "_" and ".", beginning and ending with a letter or digit. Host names are
// as long as that, and some have the underscore that DNS forbids.
func IsName(s string) bool {
	return len(s) <= 253 && isWord(s, func(c byte) bool {
		return isLower(c) || c >= 'A' && c <= 'Z' || c == '-' || c == '_' || c == '.'
	})
}

// IsScheduler reports whether s can name an IPVS scheduler: 1 to 15 of a-z and
// 0-9. The kernel's bound is IP_VS_SCHEDNAME_MAXLEN, 16 with the final NUL.
func IsScheduler(s string) bool {
	return len(s) <= 15 && isWord(s, isLower)
}

// isWord reports whether s is one or more of the letters, and neither begins nor
// ends with punctuation.
func isWord(s string, letter func(byte) bool) bool {
	for i := range len(s) {
		if !letter(s[i]) {
			return false
		}
	}
	return s != "" && !isMark(s[0]) && !isMark(s[len(s)-1])
}

func isLower(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

func isMark(c byte) bool { return c == '-' || c == '_' || c == '.' }

// Bounds of what a service says to people. Those of labels are the ones of Kubernetes, except for their number.
const (
	MaxDescription = 256 // bytes of Service.Description
	MaxLabels      = 64  // of a service

	maxLabelPrefix = 253 // bytes of what stands before the slash of a label's key
	maxLabelWord   = 63  // bytes of the rest of it, and of a value
)

// IsLabelKey reports whether s can be the key of a label: 1 to 63 of a-z, A-Z, 0-9, "-", "_" and ".",
// beginning and ending with a letter or digit; before it may stand DNS labels with points between them,
// 253 bytes at most, and a slash.
func IsLabelKey(s string) bool {
	prefix, word, prefixed := strings.Cut(s, "/")
	if !prefixed {
		prefix, word = "a", s
	}
	return len(prefix) <= maxLabelPrefix && !slices.ContainsFunc(strings.Split(prefix, "."), func(l string) bool { return !IsLabel(l) }) &&
		len(word) <= maxLabelWord && IsName(word)
}

// MetricLabel returns the name that metrics have for a label of services, which Prometheus allows fewer characters: of
// "example.com/team" it is "label_example_com_team".
func MetricLabel(key string) string {
	return "label_" + strings.Map(func(r rune) rune {
		if strings.ContainsRune("-./", r) {
			return '_'
		}
		return r
	}, key)
}

// IsLabelValue reports whether s can be the value of a label: nothing, or as the key without what stands
// before the slash.
func IsLabelValue(s string) bool { return s == "" || len(s) <= maxLabelWord && IsName(s) }
