package http

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	nethttp "net/http"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
)

// raw answers with these bytes instead of an HTTP response, and closes the connection.
func raw(text string) nethttp.HandlerFunc {
	return func(out nethttp.ResponseWriter, _ *nethttp.Request) {
		conn, _, err := nethttp.NewResponseController(out).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}
}

// endless answers until the client stops reading.
func endless(part string, pause time.Duration) nethttp.HandlerFunc {
	return func(out nethttp.ResponseWriter, r *nethttp.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(out, part); err != nil {
				return
			}
			if pause > 0 {
				_ = nethttp.NewResponseController(out).Flush()
				time.Sleep(pause)
			}
		}
	}
}

func redirect(to string) nethttp.HandlerFunc {
	return func(out nethttp.ResponseWriter, r *nethttp.Request) {
		nethttp.Redirect(out, r, to, nethttp.StatusFound)
	}
}

func code(status int, header ...string) nethttp.HandlerFunc {
	return func(out nethttp.ResponseWriter, _ *nethttp.Request) {
		for i := 0; i < len(header); i += 2 {
			out.Header().Set(header[i], header[i+1])
		}
		out.WriteHeader(status)
	}
}

func typed(kind, text string) nethttp.HandlerFunc {
	return func(out nethttp.ResponseWriter, _ *nethttp.Request) {
		out.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(out, text)
	}
}

// packed answers with n compressed zeros.
func packed(n int) nethttp.HandlerFunc {
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	_, _ = zip.Write(make([]byte, n))
	_ = zip.Close()
	return func(out nethttp.ResponseWriter, _ *nethttp.Request) {
		out.Header().Set("Content-Encoding", "gzip")
		_, _ = out.Write(b.Bytes())
	}
}

// attackSize is the largest answer in TestAttacks, in bytes.
const attackSize = 100_000

// A server may send a broken or hostile index or text. Then nothing changes, the reason is reported, and the next good answer
// is used.
func TestAttacks(t *testing.T) {
	other := newWeb(t)
	other.put("/svc/index.json", indexOf(9, nil))
	other.put("/svc/web.toml", "B")
	index := func(answer nethttp.HandlerFunc) func(w *web) {
		return func(w *web) { w.set("/svc/index.json", answer) }
	}
	text := func(answer nethttp.HandlerFunc) func(w *web) {
		return func(w *web) {
			w.set("/svc/web.toml", answer)
			w.put("/svc/index.json", indexOf(3, texts{"web.toml": "B"}))
		}
	}
	raws := func(url, sum string) func(w *web) {
		quoted, _ := json.Marshal(url)
		return index(serve(fmt.Sprintf(`{"version": 3, "files": [{"url": %s, "sha256": %q}]}`, quoted, sum)))
	}
	for name, test := range map[string]struct {
		attack func(w *web)
		want   string
	}{
		"not found":         {index(nil), "404 Not Found"},
		"gone":              {index(code(410)), "410 Gone"},
		"no content":        {index(code(204)), "204 No Content"},
		"an unknown status": {index(code(799)), "the server answers 799"},
		"busy":              {index(code(503, "Retry-After", "0")), "503 Service Unavailable"},
		"empty":             {index(serve("")), "the answer is empty"},
		"a page":            {index(typed("text/html; charset=utf-8", "<html>maintenance")), "a page of HTML"},
		"an error in JSON":  {index(serve(`{"error": "not ready"}`)), "neither an index"},
		"not JSON":          {index(serve("upstream connect error")), "invalid character"},
		"another encoding":  {index(serve("\xff\xfe{\x00")), "invalid character"},
		"a service file":    {index(serve(`{"services": []}`)), "it was an index and is a service file; use another URL"},
		"an older version":  {index(serve(indexOf(1, nil))), "version 1, and version 2 was in use"},
		"another content":   {index(serve(indexOf(2, nil))), "its version must rise"},
		"version zero":      {index(serve(indexOf(0, nil))), "want version"},

		"too large":            {index(serve(strings.Repeat(" ", attackSize+1))), "more than 100000 bytes"},
		"10 GB announced":      {index(code(200, "Content-Length", "10000000000")), "more than 100000 bytes"},
		"endless":              {index(endless(strings.Repeat("[", 4096), 0)), "more than 100000 bytes"},
		"slow":                 {index(endless(" ", 20*time.Millisecond)), "no complete answer within"},
		"silent":               {index(func(_ nethttp.ResponseWriter, r *nethttp.Request) { <-r.Context().Done() }), "no complete answer within"},
		"cut off":              {index(raw("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"version\": 3")), "unexpected EOF"},
		"a chunk cut off":      {index(raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"ver")), "unexpected EOF"},
		"without a length":     {index(raw("HTTP/1.0 200 OK\r\n\r\n" + indexOf(3, nil))), "may be cut off"},
		"no answer":            {index(raw("")), "EOF"},
		"not HTTP":             {index(raw("SSH-2.0-OpenSSH\r\n")), "malformed HTTP"},
		"an endless header":    {index(raw("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20))), "header"},
		"a compressed bomb":    {index(packed(10_000_000)), "compressed"},
		"a part":               {index(code(206, "Content-Range", "bytes 0-1/2")), "206 Partial Content"},
		"unchanged, not asked": {text(code(304)), "304 Not Modified"},
		"a redirect elsewhere": {index(redirect(other.URL + "/svc/index.json")), "redirects to another origin"},
		"a redirect to a user": {index(func(out nethttp.ResponseWriter, r *nethttp.Request) {
			redirect("http://u:secret@"+r.Host+"/svc/x.json")(out, r)
		}), "redirects to another origin"},
		"a redirect to a file":  {index(redirect("file:///etc/passwd")), "redirects to another origin"},
		"a redirect in circles": {index(redirect("/svc/index.json")), "redirects more than 5 times"},

		"a text that is not there": {text(nil), "/svc/web.toml: the server answers 404"},
		"a text of another hash":   {text(serve("C")), "its sha256 differs"},
		"a text without an end":    {text(endless("x", 0)), "more than 100000 bytes"},
		"a text that redirects":    {text(redirect(other.URL + "/svc/web.toml")), "redirects to another origin"},
		"a text of another server": {raws(other.URL+"/svc/web.toml", sumB), "not below"},
		"a text outside":           {raws("../web.toml", sumA), "not below"},
		"a text with a user":       {raws("http://u@h/svc/web.toml", sumA), "not below"},
		"a text with a query":      {raws("web.toml?a", sumA), "neither ? nor #"},
		"a text with a fragment":   {raws("web.toml#a", sumA), "neither ? nor #"},
		"a text with line feeds":   {raws("web\n.toml", sumA), "want a URL"},
		"a text with escapes":      {raws("web\x1b[2J.toml", sumA), "want a URL"},
		"a text with a long name":  {raws(strings.Repeat("a", 1020)+".toml", sumA), "more than 1024 bytes"},
		"a text of a local file":   {raws("file:///etc/passwd.toml", sumA), "not below"},
		"too much together": {func(w *web) {
			files := texts{}
			for i := range totalFactor + 1 {
				files[fmt.Sprintf("%d.toml", i)] = strings.Repeat("x", attackSize-i)
			}
			w.publish(3, files)
		}, "together"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWeb(t)
			w.publish(2, texts{"web.toml": "A"})
			f := follow(t, Options{URLs: []string{w.URL + "/svc/index.json"}, MaxSize: attackSize, Timeout: 300 * time.Millisecond})
			f.expect("2: web.toml=A")
			test.attack(w)
			f.refuses(test.want)
			if got, n := f.given(); n != 1 {
				t.Errorf("gave %q", got)
			}
			w.publish(4, texts{"web.toml": "D"})
			f.expect("4: web.toml=D")
			f.settles(1)
		})
	}
}

// The same bounds apply to a text that is not part of an index.
func TestAttacksOnText(t *testing.T) {
	for name, test := range map[string]struct {
		answer nethttp.HandlerFunc
		want   string
	}{
		"not found":        {nil, "404"},
		"empty":            {serve(""), "the answer is empty"},
		"a page":           {typed("text/html", "<html>"), "a page of HTML"},
		"endless":          {endless("# ", 0), "more than 100000 bytes"},
		"without a length": {raw("HTTP/1.0 200 OK\r\n\r\nservices = []\n"), "may be cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWeb(t)
			w.put("/web.toml", "A")
			f := follow(t, Options{URLs: []string{w.URL + "/web.toml"}, MaxSize: attackSize})
			f.expect(": web.toml=A")
			w.set("/web.toml", test.answer)
			f.refuses(test.want)
			w.put("/web.toml", "B")
			f.expect(": web.toml=B")
			if _, n := f.given(); n != 2 {
				t.Errorf("gave %d sets, want 2", n)
			}
		})
	}
}

// Once the texts of an index exceed the total bound, no more of them are requested.
func TestTextsAfterTooMany(t *testing.T) {
	const listed, size = 500, attackSize / 10
	w, files := newWeb(t), texts{}
	for i := range listed {
		files[fmt.Sprintf("%d.toml", i)] = fmt.Sprintf("%0*d", size, i)
	}
	w.publish(1, files)
	f := follow(t, Options{URLs: []string{w.URL + indexPath}, MaxSize: attackSize, Interval: time.Hour})
	pace.Until(t, "the first poll", func() bool { n, _ := f.polls(); return n > 0 })
	f.end()
	asked := 0
	for name := range files {
		asked += w.count("200 /svc/" + name)
	}
	if _, err := f.polls(); err == nil || !strings.Contains(err.Error(), "together") || asked > totalFactor*attackSize/size+3*parallel {
		t.Errorf("asked for %d of %d texts (%v)", asked, listed, err)
	}
}
