package xtables

import (
	"bytes"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
)

// maxAhead is how many rules in front of the jumps of a chain are kept, for people to read.
const maxAhead = 3

// passing are targets after which a packet goes on to the next rule as before.
var passing = map[string]bool{
	"": true, "LOG": true, "NFLOG": true, "ULOG": true, "TRACE": true, "AUDIT": true,
	"MARK": true, "CONNMARK": true, "SECMARK": true, "CONNSECMARK": true, "CLASSIFY": true, "RATEEST": true,
	"TOS": true, "DSCP": true, "TTL": true, "HL": true, "ECN": true, "TCPMSS": true, "TCPOPTSTRIP": true,
	"CHECKSUM": true, "SET": true, "CT": true, "NOTRACK": true, "TEE": true, "LED": true,
}

// overrules reports whether a rule may keep packets from the rules after it: it drops or
// translates them, or leads to a chain that may. In the table filter ACCEPT takes nothing
// from a service; in the others it passes over the rules that balance.
func overrules(table string, rule []byte) bool {
	return targetOverrules(table, targetOf(rule))
}

func targetOverrules(table, target string) bool {
	if target == "ACCEPT" {
		return table != "filter"
	}
	return !passing[target]
}

// targetOf returns the target of a rule, or the chain that it leads to; empty: it only counts.
func targetOf(rule []byte) string {
	for len(rule) > 0 {
		word, rest := nextWord(rule)
		if string(word) == "-j" || string(word) == "-g" {
			name, _ := nextWord(rest)
			return string(name)
		}
		rule = rest
	}
	return ""
}

// nextWord cuts a word off a rule: text that holds spaces is quoted, with a backslash
// before quotes in it.
func nextWord(rule []byte) (word, rest []byte) {
	rule = bytes.TrimLeft(rule, " ")
	quoted := false
	for i := 0; i < len(rule); i++ {
		switch {
		case rule[i] == '\\':
			i++
		case rule[i] == '"':
			quoted = !quoted
		case rule[i] == ' ' && !quoted:
			return rule[:i], rule[i:]
		}
	}
	return rule, nil
}

// jumpsTo reports whether a rule jumps or goes to a chain whose name begins with prefix.
// Such a target has no options, so it ends the line.
func jumpsTo(rule, prefix []byte) bool {
	i := bytes.LastIndexByte(rule, ' ')
	verb, name := rule[:max(i, 0)], rule[i+1:]
	if bytes.IndexByte(name, '"') >= 0 {
		return false // the end of a quoted text; no chain of ours has a quote in its name
	}
	return bytes.HasPrefix(name, prefix) && (bytes.HasSuffix(verb, []byte("-j")) || bytes.HasSuffix(verb, []byte("-g")))
}

// passingNative are expressions after which a rule of nft goes on, and a packet does after
// the rule: those that match, count, log and set fields.
var passingNative = map[string]bool{
	"counter": true, "cmp": true, "bitwise": true, "byteorder": true, "range": true, "meta": true, "payload": true,
	"exthdr": true, "ct": true, "rt": true, "fib": true, "osf": true, "socket": true, "xfrm": true, "hash": true,
	"numgen": true, "limit": true, "quota": true, "connlimit": true, "last": true, "log": true, "match": true,
	"dynset": true, "notrack": true, "dup": true,
}

// nativeOverrules is overrules for a rule as nf_tables lists it.
func nativeOverrules(table string, exprs []nft.Expression) bool {
	for _, e := range exprs {
		code, _, decides := e.Verdict()
		target, _ := e.Extension()
		switch {
		case passingNative[e.Name], e.Name == "immediate" && !decides, decides && code == unix.NFT_CONTINUE:
		case e.Name == "lookup" && !e.HasVerdictMap():
		case decides && code == nft.Accept && table == "filter":
		case e.Name == "target" && !targetOverrules(table, target):
		default:
			return true
		}
	}
	return false
}
