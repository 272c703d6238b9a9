package modes

import (
	"context"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

func openNFTables(ctx context.Context, fam policy.Family, c OpenConfig) (Backend, error) {
	return nftables.New(ctx, fam, nftables.Options{Flowtable: c.NFTables.Flowtable, Offload: c.NFTables.FlowtableOffload, Log: c.Log})
}

func removeNFTables(ctx context.Context, fam policy.Family, _ OpenConfig) error {
	return nftables.Cleanup(ctx, fam)
}

func compareNFTables(before, after *policy.State, _ configs.Settings) ([]proxier.Change, error) {
	return nftables.Compare(before, after)
}
