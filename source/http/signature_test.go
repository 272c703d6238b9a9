package http

import (
	"bytes"
	"crypto/rand"
	"strings"
	"testing"

	"aead.dev/minisign"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// A signer signs as minisign does.
type signer struct {
	public  minisign.PublicKey
	private minisign.PrivateKey
}

func newSigner(t testing.TB) signer {
	t.Helper()
	public, private, err := minisign.GenerateKey(rand.Reader)
	fatal.If(t, err)
	return signer{public, private}
}

func (s signer) sign(text, comment string) []byte {
	r := minisign.NewReader(strings.NewReader(text))
	_, _ = new(bytes.Buffer).ReadFrom(r)
	return r.SignWithComments(s.private, comment, "signature from minisign secret key")
}

func TestSignatures(t *testing.T) {
	own, other := newSigner(t), newSigner(t)
	const name, text = "https://h/svc/index.json", "text"
	good := own.sign(text, "timestamp:1700000000\tfile:index.json\thashed")
	for _, test := range []struct {
		name      string
		signature []byte
		signed    uint64
		want      string
	}{
		{"as minisign makes it", good, 1700000000, ""},
		{"of a text that is not hashed", minisign.SignWithComments(own.private, []byte(text), "timestamp:5", "x"), 5, ""},
		{"a comment without time", own.sign(text, "release 7"), 0, ""},
		{"no comment", own.sign(text, ""), 0, ""},
		{"of another key", other.sign(text, "timestamp:1700000000"), 0, "does not match"},
		{"of another text", own.sign("texts", "timestamp:1700000000"), 0, "does not match"},
		{"of another file", own.sign(text, "timestamp:1700000000\tfile:web.toml"), 0, `for another file, "web.toml"`},
		{"a changed comment", bytes.Replace(good, []byte("1700000000"), []byte("1700000001"), 1), 0, "does not match"},
		{"a time that is none", own.sign(text, "timestamp:soon"), 0, "not a number"},
		{"a negative time", own.sign(text, "timestamp:-1"), 0, "not a number"},
		{"empty", nil, 0, "index.json.minisig is not a signature"},
		{"a page", []byte("<html>"), 0, "not a signature"},
		{"cut off", good[:len(good)/2], 0, "not a signature"},
		{"the public key", []byte(own.public.String()), 0, "not a signature"},
	} {
		signed, err := verify(&own.public, name, []byte(text), test.signature)
		if signed != test.signed || (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %d, %v; want %d, %q", test.name, signed, err, test.signed, test.want)
		}
	}
}

func TestKeys(t *testing.T) {
	own := newSigner(t)
	if key, err := ParseKey(own.public.String()); err != nil || !key.Equal(own.public) {
		t.Error(key, err)
	}
	whole, _ := own.public.MarshalText()
	for _, text := range []string{"", "RWQ", own.public.String()[1:], own.public.String() + "\n", string(whole), strings.Repeat("A", 56)} {
		if _, err := ParseKey(text); err == nil {
			t.Errorf("accepted %q", text)
		}
	}
}

// A content is not replaced by an older one, nor by a different one of the same version.
func TestMarks(t *testing.T) {
	at := func(version uint64, text string) mark { return newMark(true, version, []byte(text), "key") }
	file := newMark(false, 9, []byte("a"), "key")
	for _, test := range []struct {
		name         string
		before, next mark
		want         string
	}{
		{"first", mark{}, at(1, "a"), ""},
		{"the same", at(2, "a"), at(2, "a"), ""},
		{"newer", at(2, "a"), at(3, "b"), ""},
		{"newer with the same text", at(2, "a"), at(3, "a"), ""},
		{"older", at(2, "a"), at(1, "b"), "version 1, and version 2 was in use"},
		{"another of the same version", at(2, "a"), at(2, "b"), "must rise"},
		{"a service file", at(2, "a"), file, "was an index"},
		{"another key", at(2, "a"), newMark(true, 1, []byte("b"), "key 2"), ""},
		{"files that are not signed", newMark(false, 0, []byte("a"), ""), newMark(false, 0, []byte("b"), ""), ""},
		{"an older index that is not signed", newMark(true, 2, []byte("a"), ""), newMark(true, 1, []byte("b"), ""), "was in use"},
	} {
		err := test.before.follows(test.next)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", test.name, err, test.want)
		}
	}
}
