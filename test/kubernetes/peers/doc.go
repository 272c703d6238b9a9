// Package peers measures svcproxy and kube-proxy, the programs themselves, by turns in
// equal namespaces: make bench-peers, docs/bench-peers.md. As root:
//
//	go test -tags netns -count 1 -v -timeout 24h -run TestBenchPeers .
//	go test -tags netns -count 1 -v -timeout 2h -run TestBenchPeers/nftables/10000x10 .
//	go test -tags netns -count 1 -v -timeout 2h -run 'TestBenchPeers/iptables-nft/.*/.*/kube-proxy' .
//
// What was measured stays in docs/bench, and a later run goes on from there. Both
// programs read the services from one server, which answers from memory:
//
//	services ─┬─► server (list and watch, on the node) ─┬─► kube-proxy ─► kernel
//	          │                                         └─► svcproxy ───► kernel
//	          └─► files ──────────────────────────────────► svcproxy ───► kernel
package peers
