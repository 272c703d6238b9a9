package modes

import (
	"context"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables"
)

func openNFTables(ctx context.Context, fam proxier.Family, c OpenConfig) (Backend, error) {
	return nftables.New(ctx, fam, nftables.Options{Flowtable: c.NFTables.Flowtable, Offload: c.NFTables.FlowtableOffload, Log: c.Log})
}

func removeNFTables(ctx context.Context, fam proxier.Family, _ OpenConfig) error {
	return nftables.Cleanup(ctx, fam)
}

func compareNFTables(before, after *proxier.State, _ configs.Settings) ([]proxier.Change, error) {
	return nftables.Compare(before, after)
}
