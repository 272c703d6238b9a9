package xtables

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/nft"
)

func TestOverrules(t *testing.T) {
	for rule, want := range map[string]struct{ filter, nat bool }{
		"-o vs -j DROP": {true, true},
		"-j REJECT --reject-with icmp-port-unreachable":    {true, true},
		"-j DOCKER-FORWARD":                                {true, true},
		"-s 10.0.0.0/8 -g OTHER":                           {true, true},
		"-j RETURN":                                        {true, true},
		"-d 192.0.2.1/32 -j DNAT --to-destination 1.2.3.4": {true, true},
		"-i lo -j ACCEPT":                                  {false, true},
		"-s 10.0.0.0/8":                                    {false, false},
		`-j LOG --log-prefix "to -j DROP "`:                {false, false},
		`-m comment --comment "a \" -j DROP" -j ACCEPT`:    {false, true},
		"-j MARK --set-xmark 0x1/0x1":                      {false, false},
	} {
		if got := overrules("filter", []byte(rule)); got != want.filter {
			t.Errorf("%s in filter: %v", rule, got)
		}
		if got := overrules("nat", []byte(rule)); got != want.nat {
			t.Errorf("%s in nat: %v", rule, got)
		}
	}
}

// Only the first few foreign rules are kept, and only those in front of our last jump.
func TestForeignRulesAheadAreBounded(t *testing.T) {
	for _, tt := range []struct {
		rules             string
		ahead, beforeUser []string
	}{
		{rules: "-j SVCP-F;-j DROP"},
		{rules: "-j ACCEPT;-j LOG;-j SVCP-F"},
		{rules: "-i a -j DROP;-j SVCP-F", ahead: []string{"-i a -j DROP"}},
		{rules: "-j SVCP-F;-i a -j DROP;-j SVCP-G;-i b -j DROP", ahead: []string{"-i a -j DROP"}},
		{rules: "-i a -j X;-j DOCKER-USER;-i b -j X;-j SVCP-F", ahead: []string{"-i b -j X"}, beforeUser: []string{"-i a -j X"}},
		{
			rules: "-i a -j X;-i b -j X;-i c -j X;-i d -j X;-j SVCP-F",
			ahead: []string{"-i a -j X", "-i b -j X", "-i c -j X"},
		},
	} {
		text := "*filter\n:FORWARD ACCEPT [0:0]\n"
		for _, r := range strings.Split(tt.rules, ";") {
			text += "-A FORWARD " + r + "\n"
		}
		tables, err := parse(strings.NewReader(text+"COMMIT\n"), "SVCP-")
		fatal.If(t, err)
		got := [][]string{tables["filter"].Ahead["FORWARD"], tables["filter"].AheadOfUser["FORWARD"]}
		if diff := cmp.Diff([][]string{tt.ahead, tt.beforeUser}, got); diff != "" {
			t.Errorf("%s: ahead, and ahead of %s (-want +got):\n%s", tt.rules, UserChain, diff)
		}
	}
}

// attribute returns one attribute of nf_tables.
func attribute(typ uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, typ), value...)
	return append(b, make([]byte, (4-len(value)%4)%4)...)
}

func verdict(code int32) nft.Expression {
	v := attribute(unix.NFTA_DATA_VERDICT, attribute(unix.NFTA_VERDICT_CODE, binary.BigEndian.AppendUint32(nil, uint32(code))))
	return nft.Expression{Name: "immediate", Data: attribute(unix.NFTA_IMMEDIATE_DATA, v)}
}

func TestNativeOverrules(t *testing.T) {
	lookup := func(attrs ...byte) nft.Expression { return nft.Expression{Name: "lookup", Data: attrs} }
	target := func(name string) nft.Expression {
		return nft.Expression{Name: "target", Data: attribute(unix.NFTA_TARGET_NAME, append([]byte(name), 0))}
	}
	for _, tt := range []struct {
		name        string
		expr        nft.Expression
		filter, nat bool
	}{
		{"drop", verdict(nft.Drop), true, true},
		{"accept", verdict(nft.Accept), false, true},
		{"continue", verdict(unix.NFT_CONTINUE), false, false},
		{"return", verdict(unix.NFT_RETURN), true, true},
		{"a set", lookup(), false, false},
		{"a map", lookup(attribute(unix.NFTA_LOOKUP_DREG, []byte{0, 0, 0, 1})...), false, false},
		{"a verdict map", lookup(attribute(unix.NFTA_LOOKUP_DREG, []byte{0, 0, 0, unix.NFT_REG_VERDICT})...), true, true},
		{"reject", nft.Expression{Name: "reject"}, true, true},
		{"log", nft.Expression{Name: "log"}, false, false},
		{"the target LOG", target("LOG"), false, false},
		{"the target DNAT", target("DNAT"), true, true},
		{"what is not known", nft.Expression{Name: "newer"}, true, true},
	} {
		exprs := []nft.Expression{{Name: "counter"}, tt.expr}
		if got := nativeOverrules("filter", exprs); got != tt.filter {
			t.Errorf("%s in filter: %v", tt.name, got)
		}
		if got := nativeOverrules("nat", exprs); got != tt.nat {
			t.Errorf("%s in nat: %v", tt.name, got)
		}
	}
}
