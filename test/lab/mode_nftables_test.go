//go:build netns

package lab

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// nftablesMode runs beside another program's rules of iptables-nft and tables of nft.
func nftablesMode() mode {
	const variant = "nft"
	return mode{
		name: "nftables", alien: "SVCP-",
		prepare:          func(h *Host) error { return makeForeign(h, variant) },
		translateForeign: func(h *Host, on bool) error { return translateForeign(h, variant, on) },
		damages: []damage{
			{name: "ruleset flushed", do: func(h *Host) error { return nft(h, "flush ruleset") }},
			{name: "tables deleted", do: func(h *Host) error { return nft(h, "delete table ip svcproxy\ndelete table ip6 svcproxy") }},
			{name: "tables emptied of rules", do: func(h *Host) error { return nft(h, "flush table ip svcproxy\nflush table ip6 svcproxy") }},
			{name: "sets and maps flushed", do: flushNFTSets},
			{name: "rules inserted", do: insertNFTRules},
			{name: "strays added", do: func(h *Host) error {
				return nft(h, "add chain ip svcproxy stray { type filter hook prerouting priority -300; }\n"+
					"add rule ip svcproxy stray drop\nadd set ip6 svcproxy stray { type ipv6_addr; }")
			}},
		},
	}
}

func nft(h *Host, script string) error {
	_, err := h.RunInput(script+"\n", "nft", "-f", "-")
	return err
}

// nftEach runs each script as a transaction of its own.
func nftEach(h *Host, scripts ...string) error {
	var errs []error
	for _, script := range scripts {
		errs = append(errs, nft(h, script))
	}
	return errors.Join(errs...)
}

var (
	nftSet   = regexp.MustCompile(`^\s+(set|map) (\S+) \{`)
	nftChain = regexp.MustCompile(`^\s+chain (\S+) \{`)
)

// eachNFT runs a line of nft for each object of our tables that match finds.
//
// svcproxy may change the table between the listing and the script: then both are made again.
func eachNFT(h *Host, match *regexp.Regexp, line func(table string, found []string) string) error {
	for _, family := range []string{"ip", "ip6"} {
		err := eachOfFamily(h, family, match, line)
		for try := 1; err != nil && strings.Contains(err.Error(), "No such file") && try < 10; try++ {
			err = eachOfFamily(h, family, match, line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func eachOfFamily(h *Host, family string, match *regexp.Regexp, line func(table string, found []string) string) error {
	out, err := h.Run("nft", "list", "table", family, "svcproxy")
	if err != nil {
		return err
	}
	var script strings.Builder
	for text := range strings.Lines(out) {
		if found := match.FindStringSubmatch(text); found != nil {
			fmt.Fprintln(&script, line(family+" svcproxy", found))
		}
	}
	return nft(h, script.String())
}

func flushNFTSets(h *Host) error {
	return eachNFT(h, nftSet, func(table string, found []string) string {
		return "flush " + found[1] + " " + table + " " + found[2]
	})
}

func insertNFTRules(h *Host) error {
	return eachNFT(h, nftChain, func(table string, found []string) string {
		return "insert rule " + table + " " + found[1] + " return"
	})
}
