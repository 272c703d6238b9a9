package http

import (
	"context"
	"fmt"
	nethttp "net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source/remote"
)

// While nothing changes, each interval has one request, answered with 304, however many texts an index lists. When a text
// changes, only that text is fetched.
func TestNothingIsFetchedTwice(t *testing.T) {
	w, files := newWeb(t), texts{}
	for i := range 200 {
		files[fmt.Sprintf("%d.toml", i)] = fmt.Sprint(i)
	}
	w.publish(1, files)
	f := follow(t, Options{URLs: []string{w.URL + indexPath}})
	f.settles(20)
	least, _ := f.polls()
	whole, same := w.count("200 "+indexPath), w.count("304 "+indexPath)
	most, _ := f.polls()
	if whole != 1 || same < least-1 || same > most {
		t.Errorf("%d to %d polls: the index was sent %d times, and %d times unchanged", least, most, whole, same)
	}
	files["7.toml"] = "changed"
	w.publish(2, files)
	pace.Until(t, "the changed set", func() bool { _, n := f.given(); return n == 2 })
	for i := range 200 {
		want := 1
		if i == 7 {
			want = 2
		}
		if n := w.count(fmt.Sprintf("200 /svc/%d.toml", i)); n != want {
			t.Errorf("text %d was sent %d times, want %d", i, n, want)
		}
	}
}

// If an index cannot be fetched completely, the texts that were fetched are not fetched again.
func TestRetryGoesOn(t *testing.T) {
	w, files := newWeb(t), texts{}
	for i := range 50 {
		files[fmt.Sprintf("%d.toml", i)] = fmt.Sprint(i)
	}
	w.publish(1, files)
	w.set("/svc/49.toml", code(500))
	f := follow(t, Options{URLs: []string{w.URL + indexPath}})
	f.refuses("500")
	pace.Until(t, "all other texts", func() bool { return w.count("200 /svc/48.toml") > 0 })
	f.refuses("500")
	w.put("/svc/49.toml", "49")
	f.settles(1)
	for i := range 49 {
		if n := w.count(fmt.Sprintf("200 /svc/%d.toml", i)); n != 1 {
			t.Errorf("text %d was sent %d times", i, n)
		}
	}
}

// A server that is slow with the texts of an index does not keep a newer index from being seen, and no text is fetched twice.
func TestSlowTexts(t *testing.T) {
	w, files := newWeb(t), texts{}
	for i := range 50 {
		files[fmt.Sprintf("%d.toml", i)] = fmt.Sprint(i)
	}
	w.publish(1, files)
	for name, text := range files {
		w.set("/svc/"+name, func(out nethttp.ResponseWriter, r *nethttp.Request) {
			time.Sleep(20 * time.Millisecond)
			serve(text)(out, r)
		})
	}
	f := follow(t, Options{URLs: []string{w.URL + indexPath}, patience: 30 * time.Millisecond})
	f.refuses("texts have not come within 30ms")
	f.settles(1)
	if n := w.count("200 " + indexPath); n < 2 {
		t.Errorf("asked for the index %d times", n)
	}
	for name := range files {
		if n := w.count("200 /svc/" + name); n != 1 {
			t.Errorf("%s was sent %d times", name, n)
		}
	}
}

// A different text with the same ETag is noticed by its content. A wrong answer 304 is noticed when the whole text is requested,
// which happens every trustTime.
func TestServerThatIsWrongAboutETags(t *testing.T) {
	w := newWeb(t)
	tagged := func(text string) nethttp.HandlerFunc {
		return func(out nethttp.ResponseWriter, _ *nethttp.Request) {
			out.Header().Set("ETag", `"same"`)
			_, _ = out.Write([]byte(text))
		}
	}
	lying := func(text string) nethttp.HandlerFunc {
		return func(out nethttp.ResponseWriter, r *nethttp.Request) {
			if r.Header.Get("If-None-Match") == `"same"` {
				out.WriteHeader(nethttp.StatusNotModified)
				return
			}
			tagged(text)(out, r)
		}
	}
	put := func(version int, text string, serve func(string) nethttp.HandlerFunc) {
		w.set("/svc/web.toml", serve(text))
		w.set(indexPath, serve(indexOf(version, texts{"web.toml": text})))
	}
	put(1, "A", tagged)
	f := follow(t, Options{URLs: []string{w.URL + indexPath}, trust: 200 * time.Millisecond})
	f.expect("1: web.toml=A")
	put(2, "B", tagged)
	f.expect("2: web.toml=B")
	put(3, "C", lying)
	f.expect("3: web.toml=C")
	f.settles(2)
}

// A server may keep answering at its old address after its name has moved to another one. A connection is not used for longer
// than trustTime.
func TestConnectionsAreRenewed(t *testing.T) {
	w := newWeb(t)
	var mu sync.Mutex
	from := map[string]bool{}
	answer := serve("A")
	w.set("/web.toml", func(out nethttp.ResponseWriter, r *nethttp.Request) {
		mu.Lock()
		from[r.RemoteAddr] = true
		mu.Unlock()
		answer(out, r)
	})
	connections := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(from)
	}
	f := follow(t, Options{URLs: []string{w.URL + "/web.toml"}})
	f.settles(10)
	if n := connections(); n != 1 {
		t.Errorf("%d connections within %v, want 1", n, trustTime)
	}
	f = follow(t, Options{URLs: []string{w.URL + "/web.toml"}, trust: 20 * time.Millisecond})
	pace.Until(t, "more connections", func() bool { return connections() > 3 })
	f.settles(1)
}

// If-Modified-Since is sent to a server that has no ETags.
func TestServerWithTimes(t *testing.T) {
	w := newWeb(t)
	at := time.Now().Add(-time.Hour)
	put := func(text string) {
		modified := at
		w.set("/web.toml", func(out nethttp.ResponseWriter, r *nethttp.Request) {
			nethttp.ServeContent(out, r, "x.bin", modified, strings.NewReader(text))
		})
		at = at.Add(time.Minute)
	}
	put("A")
	f := follow(t, Options{URLs: []string{w.URL + "/web.toml"}})
	f.settles(5)
	if n := w.count("200 /web.toml"); n != 1 {
		t.Errorf("sent %d times", n)
	}
	put("B")
	f.expect(": web.toml=B")
}

// A text that is written twice within a second may keep its modification time and size, and so its validators. While a text is
// that new, it is always requested without validators.
func TestTextThatChangesTwiceInOneSecond(t *testing.T) {
	w := newWeb(t)
	put := func(text string, modified, now time.Time) {
		w.set("/web.toml", func(out nethttp.ResponseWriter, r *nethttp.Request) {
			out.Header().Set("Date", now.UTC().Format(nethttp.TimeFormat))
			out.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, modified.Unix(), len(text)))
			nethttp.ServeContent(out, r, "x.bin", modified, strings.NewReader(text))
		})
	}
	at := time.Unix(1_700_000_000, 0)
	put("A", at, at)
	f := follow(t, Options{URLs: []string{w.URL + "/web.toml"}})
	f.expect(": web.toml=A")
	put("B", at, at.Add(time.Second))
	f.expect(": web.toml=B")
	if n := w.count("304 /web.toml"); n != 0 {
		t.Errorf("%d answers 304", n)
	}
	put("B", at, at.Add(2*time.Second))
	f.settles(3)
	if w.count("304 /web.toml") == 0 {
		t.Error("no answer 304 once it is older")
	}
}

// URLs are independent: the texts of a URL that cannot be reached stay as they were, also at the start.
func TestSeveralURLs(t *testing.T) {
	a, b, c := newWeb(t), newWeb(t), newWeb(t)
	a.publish(1, texts{"web.toml": "A", "sub/mail.json": "M"})
	f := follow(t, Options{URLs: []string{a.URL + indexPath, b.URL + "/team/index.json", c.URL + "/dns.toml"}})
	f.expect("1: mail.json=M web.toml=A ?/team/ ?/dns.toml")
	f.refuses(b.URL + "/team/index.json: the server answers 404 Not Found; " + c.URL + "/dns.toml: the server answers 404")
	c.put("/dns.toml", "D")
	b.put("/team/index.json", indexOf(5, nil))
	pace.UntilOr(t, func() bool {
		got, _ := f.given()
		return strings.HasPrefix(got, "1,5:") && strings.HasSuffix(got, " empty=/index.json") && strings.Contains(got, "dns.toml=D")
	}, func() string { got, _ := f.given(); return got })
	f.settles(3)
	_, before := f.given()
	a.CloseClientConnections()
	a.Listener.Close()
	f.refuses(a.URL + indexPath + ": dial tcp")
	b.put("/team/x.toml", "X")
	b.put("/team/index.json", indexOf(6, texts{"x.toml": "X"}))
	pace.Until(t, "the set of the other server", func() bool { _, n := f.given(); return n == before+1 })
	f.mu.Lock()
	if got := f.sets[len(f.sets)-1].Version; got != "index.json 1, index.json 6" {
		t.Errorf("version %q", got)
	}
	f.mu.Unlock()
	for _, want := range []string{"1,6:", "web.toml=A", "mail.json=M", "x.toml=X", "dns.toml=D"} {
		if got, _ := f.given(); !strings.Contains(got, want) || strings.Contains(got, "?") {
			t.Errorf("%q lacks %q, or does not know something", got, want)
		}
	}
}

// If two URLs list the same text, the first one wins.
func TestNameOfTwoURLs(t *testing.T) {
	w := newWeb(t)
	w.publish(1, texts{"web.toml": "A"})
	var s remote.Set
	f := New(Options{URLs: []string{w.URL + "/svc/web.toml", w.URL + indexPath}, Interval: time.Hour, Timeout: time.Minute, MaxSize: 1 << 20})
	for range 2 { // a Fetcher can run again after it has ended
		ctx, cancel := context.WithCancel(t.Context())
		s = remote.Set{}
		err := f.Run(ctx, func(next remote.Set) {
			if s = next; !s.Partial {
				cancel()
			}
		}, func(error) {})
		if err != nil || words(s) != "1: web.toml=A" {
			t.Errorf("%q, %v", words(s), err)
		}
	}
}

// A canary is used by the hosts in its share. Other hosts keep the text that they have, if any, until the share includes them.
func TestCanary(t *testing.T) {
	w := newWeb(t)
	in, out := "", ""
	for i := 0; in == "" || out == ""; i++ {
		e := entry{name: w.URL + "/svc/web.toml", share: 50}
		if host := fmt.Sprintf("node-%d", i); e.covers(host) {
			in = host
		} else {
			out = host
		}
	}
	o := Options{URLs: []string{w.URL + indexPath}, Host: in}
	w.publish(1, texts{"web.toml": "A", "dns.toml": "D"})
	first := follow(t, o)
	o.Host = out
	later := follow(t, o)
	first.expect("1: dns.toml=D web.toml=A")
	later.expect("1: dns.toml=D web.toml=A")

	w.publish(2, texts{"web.toml": "B", "dns.toml": "D"}, "web.toml", "50%")
	first.expect("2: dns.toml=D web.toml=B")
	later.expect("2: dns.toml=D web.toml=A")
	restarted := follow(t, o)
	restarted.expect("2: dns.toml=D ?/svc/web.toml")

	w.publish(3, texts{"web.toml": "B", "dns.toml": "D"}, "web.toml", "100%")
	for _, f := range []*followed{first, later, restarted} {
		f.expect("3: dns.toml=D web.toml=B")
	}
	w.publish(4, texts{"web.toml": "C", "dns.toml": "D"}, "web.toml", "0%")
	for _, f := range []*followed{first, later, restarted} {
		f.expect("4: dns.toml=D web.toml=B")
	}
}

// The first poll is immediate, whatever the interval. A failed poll is retried long before the next interval.
func TestFirstPollIsAtOnce(t *testing.T) {
	w := newWeb(t)
	f := follow(t, Options{URLs: []string{w.URL + "/web.toml"}, Interval: time.Hour})
	f.refuses("404")
	w.put("/web.toml", "A")
	f.expect(": web.toml=A")
}

// Reload requests all URLs now, without validators.
func TestReload(t *testing.T) {
	w := newWeb(t)
	w.put("/web.toml", "A")
	w.put("/dns.toml", "D")
	f := follow(t, Options{URLs: []string{w.URL + "/web.toml", w.URL + "/dns.toml"}, Interval: time.Hour})
	f.expect(": dns.toml=D web.toml=A")
	f.settles(0)
	w.put("/web.toml", "B")
	f.Reload()
	f.expect(": dns.toml=D web.toml=B")
	pace.Until(t, "the whole text of both", func() bool { return w.count("200 /web.toml") == 2 && w.count("200 /dns.toml") == 2 })
}

func TestJitter(t *testing.T) {
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := jitter(100 * time.Second)
		least, most = min(least, d), max(most, d)
	}
	if least < 90*time.Second || least > 92*time.Second || most > 110*time.Second || most < 108*time.Second {
		t.Errorf("100 s become %v to %v", least, most)
	}
}

// Retry-After is honored.
func TestRetryAfter(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "99999999999999999999": 0} {
		if got := retryAfter(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	err := fmt.Errorf("asking: %w", &statusError{503, 7 * time.Second})
	if answer, leave := reading(err); answer || leave != 7*time.Second {
		t.Error(answer, leave)
	}
}

// Run returns an error for invalid options.
func TestOptionsThatCannotBeUsed(t *testing.T) {
	for want, o := range map[string]Options{
		"https://u@h/web.toml: a URL has no user": {URLs: []string{"https://u@h/web.toml"}},
		"public_key": {PublicKey: "x"},
	} {
		err := New(o).Run(t.Context(), func(remote.Set) {}, func(error) {})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
