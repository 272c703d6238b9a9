package http

import (
	"fmt"
	nethttp "net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

const indexPath = "/svc/index.json"

// signed has a server serve an index and its signature.
func (w *web) signed(s signer, text string) {
	w.put(indexPath+signatureSuffix, string(s.sign(text, "timestamp:1700000000\tfile:index.json\thashed")))
	w.put(indexPath, text)
}

func (w *web) publishSigned(s signer, version int, files texts) {
	w.publish(version, files)
	w.signed(s, indexOf(version, files))
}

// A server without the key cannot change anything, neither while svcproxy runs nor across a restart.
func TestAttacksOnSigned(t *testing.T) {
	own, other := newSigner(t), newSigner(t)
	old, now, next := indexOf(1, texts{"web.toml": "old"}), indexOf(2, texts{"web.toml": "A"}), indexOf(3, texts{"web.toml": "B"})
	signature := func(answer nethttp.HandlerFunc) func(w *web) {
		return func(w *web) { w.set(indexPath+signatureSuffix, answer); w.put(indexPath, next) }
	}
	for name, test := range map[string]struct {
		attack func(w *web)
		want   string
	}{
		"no signature":             {signature(nil), "fetching its signature: the server answers 404"},
		"a page as signature":      {signature(serve("hello")), "not a signature"},
		"an endless signature":     {signature(endless("x", 0)), "fetching its signature: the answer has more than 16384 bytes"},
		"a redirected signature":   {signature(redirect("https://other.example/x")), "fetching its signature: it redirects"},
		"another key":              {func(w *web) { w.signed(other, next) }, "does not match"},
		"a changed index":          {func(w *web) { w.put(indexPath, next) }, "does not match"},
		"another file's signature": {signature(serve(string(own.sign(next, "timestamp:1\tfile:web.toml")))), `for another file, "web.toml"`},
		"an older pair":            {func(w *web) { w.signed(own, old); w.put("/svc/web.toml", "old") }, "version 1, and version 2 was in use"},
		"an old index, new signature": {func(w *web) {
			w.signed(own, next)
			w.put(indexPath, old)
		}, "does not match"},
		"another of this version": {func(w *web) { w.signed(own, indexOf(2, nil)) }, "must rise"},
		"an older text":           {func(w *web) { w.signed(own, next); w.put("/svc/web.toml", "old") }, "its sha256 differs"},
		"a signed service file": {func(w *web) {
			text := `{"services": []}`
			w.put(indexPath, text)
			w.put(indexPath+signatureSuffix, string(own.sign(text, "timestamp:1800000000\tfile:index.json")))
		}, "it was an index and is a service file; use another URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, dir := newWeb(t), t.TempDir()
			w.put("/svc/web.toml", "A")
			w.signed(own, now)
			o := Options{URLs: []string{w.URL + indexPath}, PublicKey: own.public.String(), StateDir: dir}
			f := follow(t, o)
			f.expect("2: web.toml=A(signed)")
			test.attack(w)
			f.refuses(test.want)
			if got, n := f.given(); n != 1 {
				t.Errorf("gave %q", got)
			}
			f.end()
			f = follow(t, o)
			f.refuses(test.want)
			if got, n := f.given(); n != 0 {
				t.Errorf("gave %q after a restart", got)
			}
			w.publishSigned(own, 4, texts{"web.toml": "D"})
			f.expect("4: web.toml=D(signed)")
		})
	}
}

// Uploading an index and its signature one after the other causes no error.
func TestSignatureThatComesLater(t *testing.T) {
	own, w := newSigner(t), newWeb(t)
	w.publishSigned(own, 1, texts{"web.toml": "A"})
	f := follow(t, Options{URLs: []string{w.URL + indexPath}, PublicKey: own.public.String()})
	f.expect("1: web.toml=A(signed)")
	next := indexOf(2, texts{"web.toml": "B"})
	w.put("/svc/web.toml", "B")
	before := own.sign(indexOf(1, texts{"web.toml": "A"}), "timestamp:1")
	after := own.sign(next, "timestamp:2")
	var asked atomic.Int32
	w.set(indexPath+signatureSuffix, func(out nethttp.ResponseWriter, _ *nethttp.Request) {
		if asked.Add(1) == 1 {
			_, _ = out.Write(before)
			return
		}
		_, _ = out.Write(after)
	})
	w.put(indexPath, next)
	f.expect("2: web.toml=B(signed)")
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, err := range f.reports {
		if err != nil {
			t.Error(err)
		}
	}
	if asked.Load() != 2 {
		t.Errorf("asked for the signature %d times, want 2", asked.Load())
	}
}

// The version of a signed service file is the time of its signature.
func TestSignedText(t *testing.T) {
	own, w, dir := newSigner(t), newWeb(t), t.TempDir()
	put := func(text, comment string) {
		w.put("/web.toml.minisig", string(own.sign(text, comment)))
		w.put("/web.toml", text)
	}
	o := Options{URLs: []string{w.URL + "/web.toml"}, PublicKey: own.public.String(), StateDir: dir}
	put("A", "release 7")
	f := follow(t, o)
	f.refuses("has no timestamp")
	put("A", "timestamp:1000\tfile:web.toml")
	f.expect("1000: web.toml=A(signed)")
	put("B", "timestamp:999\tfile:web.toml")
	f.refuses("version 999, and version 1000 was in use")
	f.end()
	f = follow(t, o)
	f.refuses("version 999, and version 1000 was in use")
	put("B", "timestamp:1001\tfile:mail.toml")
	f.refuses(`for another file, "mail.toml"`)
	put("B", "timestamp:1001\tfile:web.toml")
	f.expect("1001: web.toml=B(signed)")
}

// Saved versions of another key, or a damaged file of versions, do not block new texts.
func TestKeptVersions(t *testing.T) {
	own, next, w, dir := newSigner(t), newSigner(t), newWeb(t), t.TempDir()
	w.publishSigned(own, 7, texts{"web.toml": "A"})
	o := Options{URLs: []string{w.URL + indexPath}, PublicKey: own.public.String(), StateDir: dir}
	f := follow(t, o)
	f.expect("7: web.toml=A(signed)")
	f.end()

	w.publishSigned(next, 1, texts{"web.toml": "B"})
	o.PublicKey = next.public.String()
	f = follow(t, o)
	f.expect("1: web.toml=B(signed)")
	f.end()

	path := filepath.Join(dir, marksName)
	for _, damage := range []string{"", "{", "[]", `{"a": 1}`, strings.Repeat(" ", maxMarks+1)} {
		fatal.If(t, os.WriteFile(path, []byte(damage), 0o600))
		f = follow(t, o)
		f.expect("1: web.toml=B(signed)")
		f.end()
		if !strings.Contains(f.log.String(), "cannot read which versions") {
			t.Errorf("%.20q: %s", damage, f.log)
		}
		if marks, err := loadMarks(dir); err != nil || marks[o.URLs[0]].Version != 1 {
			t.Errorf("%.20q: %v, %v", damage, marks, err)
		}
	}

	fatal.If(t, os.Remove(path))
	fatal.If(t, os.Mkdir(path, 0o700)) // cannot be replaced
	f = follow(t, o)
	f.expect("1: web.toml=B(signed)")
	f.settles(3)
	if n := strings.Count(f.log.String(), "cannot save which versions"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, f.log)
	}
	fatal.If(t, os.Remove(path))
	f.settles(2)
	if marks, err := loadMarks(dir); err != nil || marks[o.URLs[0]].Version != 1 {
		t.Error(marks, err)
	}
}

// A process that was killed while it wrote versions leaves a draft file. The draft does no harm.
func TestVersionsAreReplaced(t *testing.T) {
	dir := t.TempDir()
	for version := range uint64(3) {
		fatal.If(t, os.WriteFile(filepath.Join(dir, marksName+".new"), []byte("{half"), 0o600))
		want := map[string]mark{"https://h/index.json": newMark(true, version, nil, "key")}
		fatal.If(t, saveMarks(dir, want))
		if got, err := loadMarks(dir); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
}
