package healthcheck

import (
	"errors"
	"io"
	"log"
	"strings"
	"testing"
	"unicode/utf8"
)

// discard is for servers whose complaints are wanted.
var discard = log.New(io.Discard, "", 0)

func TestWordsAreBounded(t *testing.T) {
	for _, s := range []string{strings.Repeat("ä", maxError), strings.Repeat("\x00", maxError), strings.Repeat("a", maxError-1) + "€€", "\xff\xfe"} {
		got := words(errors.New(s))
		if len(got) > maxError || !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\n") {
			t.Errorf("%.20q: %d bytes: %q", s, len(got), got)
		}
	}
}
