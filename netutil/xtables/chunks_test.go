package xtables

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"testing"
)

// A world is what tables hold: rules by chain.
type world map[string]string

// run does what iptables-restore does with one table, and fails the test where it would fail.
func (w world) run(t *testing.T, s *Script) {
	t.Helper()
	for line := range strings.Lines(string(s.bytes(NFT))) {
		line = strings.TrimSuffix(line, "\n")
		verb, rest, _ := strings.Cut(line, " ")
		name, rule, _ := strings.Cut(rest, " ")
		target := line[strings.LastIndexByte(line, ' ')+1:]
		if _, there := w[target]; (verb == "-A" || verb == "-I") && strings.HasPrefix(target, "SVCP-") && !there {
			t.Fatalf("%q leads to a chain that is not there", line)
		}
		switch {
		case strings.HasPrefix(line, ":"):
			w[strings.TrimPrefix(verb, ":")] = ""
		case verb == "-A":
			w[name] += rule + "\n"
		case verb == "-I":
			w[name] = rule + "\n" + w[name]
		case verb == "-D":
			w[name] = strings.Replace(w[name], rule+"\n", "", 1)
		case verb == "-X":
			for other, rules := range w {
				if strings.Contains(rules, name+"\n") {
					t.Fatalf("%q: chain %s leads to it", line, other)
				}
			}
			delete(w, name)
		}
	}
}

// Chunks do together what the script does, whatever their size, and each can be run.
func TestChunksDoWhatTheScriptDoes(t *testing.T) {
	script := func() *Script {
		var s Script
		s.Set("nat", "SVCP-ROOT", []byte("-A SVCP-ROOT -d 1 -j SVCP-LEFT\n-A SVCP-ROOT -g SVCP-RIGHT\n"))
		s.Set("nat", "SVCP-LEFT", []byte("-A SVCP-LEFT -j SVCP-LEAF-1\n-A SVCP-LEFT -j SVCP-HELD\n"))
		for i := range 9 {
			leaf := fmt.Sprintf("SVCP-LEAF-%d", i)
			s.Set("nat", leaf, []byte("-A "+leaf+" -j DNAT\n"))
		}
		s.Set("nat", "SVCP-RIGHT", []byte("-A SVCP-RIGHT -j SVCP-LEAF-8\n"))
		s.Remove("nat", "SVCP-GONE-1")
		s.Remove("nat", "SVCP-GONE-2")
		s.DeleteJump("nat", "OUTPUT", "-j SVCP-GONE-1")
		s.InsertJump("nat", "OUTPUT", "-j SVCP-ROOT", 0)
		return &s
	}
	start := world{"OUTPUT": "-j SVCP-GONE-1\n", "SVCP-GONE-1": "-j SVCP-GONE-2\n", "SVCP-GONE-2": "-j SVCP-LEFT\n", "SVCP-LEFT": "-j SVCP-GONE-1\n", "SVCP-HELD": "-j RETURN\n"}
	want := maps.Clone(start)
	want.run(t, script())
	for size := 1; size < 20; size++ {
		got := maps.Clone(start)
		chunks := script().Chunks(size, "SVCP-")
		for _, p := range chunks {
			if n := len(p.tables[0].chains); n > size {
				t.Errorf("size %d: a chunk has %d chains", size, n)
			}
			if bytes.Count(p.bytes(NFT), []byte("COMMIT\n")) != 1 {
				t.Errorf("size %d: a chunk is not of one table", size)
			}
			linked := strings.Contains(got["OUTPUT"], "SVCP-ROOT")
			if linked && !strings.Contains(string(p.bytes(NFT)), "-X ") {
				t.Errorf("size %d: OUTPUT leads to ours before all is there", size)
			}
			got.run(t, p)
		}
		if !maps.Equal(got, want) {
			t.Errorf("size %d: got %q, want %q", size, got, want)
		}
	}
}
