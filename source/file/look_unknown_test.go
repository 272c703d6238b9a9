package file

import (
	"testing"
	"time"
)

// What a server has not spoken of stays as it was, over a restart too. What it lacks besides is gone, and a change takes no
// more work than without that.
func TestUnknownTextsStay(t *testing.T) {
	serving(t, func(s *served) {
		s.start()
		s.give(map[string]string{"a/a.toml": "a 1\n", "b/b.toml": "b 1\n", "c/c.toml": "c 1\n", "c/d.toml": "d 1\n"})
		s.use("at first", "a 1, b 1, c 1, d 1", 1)
		part := set(map[string]string{"c/d.toml": "d 2\n"})
		part.Unknown = []string{"https://h/a/", "https://h/b/b.toml"}
		s.giveSet(part)
		s.use("a canary", "a 1, b 1, d 2", 1)
		s.warns("a canary", "")
		moment()
		s.stop()

		s.start()
		part.Partial = true
		s.giveSet(part)
		s.use("after a restart", "a 1, b 1, d 2", 1)
		s.warns("after a restart", staleText)
		s.parsed.Store(0)
		next := set(map[string]string{"c/d.toml": "d 3\n", "c/e.toml": "e 1\n"})
		next.Partial, next.Unknown = true, part.Unknown
		s.giveSet(next)
		s.use("a change beside", "a 1, b 1, d 3, e 1", 1)
		if n := s.parsed.Load(); n != 2 {
			t.Errorf("parsed %d texts, want 2", n)
		}
		last := set(map[string]string{"c/d.toml": "d 3\n"})
		last.Unknown = []string{"https://h/b/b.toml"}
		s.giveSet(last)
		s.use("once it has spoken of one", "b 1, d 3", 1)
		s.warns("once it has spoken of one", "")
		s.give(map[string]string{"c/d.toml": "d 3\n"})
		s.use("and of the other", "d 3", 1)
		s.stop()
	})
}

// An answer that lists nothing keeps what it may have listed, and nothing else.
func TestEmptyAnswerKeepsItsOwn(t *testing.T) {
	serving(t, func(s *served) {
		s.start()
		s.give(map[string]string{"a/a.toml": "a 1\n", "b/b.toml": "b 1\n", "b/c.toml": "c 1\n"})
		s.use("at first", "a 1, b 1, c 1", 1)
		one := set(map[string]string{"a/a.toml": "a 1\n", "b/b.toml": "b 1\n"})
		one.Empty = []string{"https://h/d/index.json"}
		s.giveSet(one)
		s.use("another answer lists nothing, as ever", "a 1, b 1", 1)
		s.warns("another answer lists nothing, as ever", "")
		two := set(map[string]string{})
		two.Empty, two.Unknown = []string{"https://h/d/index.json", "https://h/a/index.json"}, []string{"https://h/d/x.toml"}
		s.giveSet(two)
		s.use("one that had a text", "a 1", 1)
		s.warns("one that had a text", `"https://h/a/index.json" lists no service files, and 1 of 2 that were known are missing`)
		s.confirm()
		pass(time.Second)
		s.use("confirmed", "", 1)
		s.stop()
	})
}
