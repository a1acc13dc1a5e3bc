// SPDX-License-Identifier: Apache-2.0
// The references to councils that the entries of communicators have.
#include "shim/hooks/councils.h"

#include "tests/component/shim/agreement/council_scene.h"

namespace deft {
namespace {

using agreement::Council;
using agreement::CouncilRef;
using agreement::test::eventually;

CommunicatorPin made(int number) {
    static NcclTable table;
    static int places[4];
    return Registry::process().add(reinterpret_cast<deft_nccl_comm_t>(&places[number]), &table, 1,
                                   0, 2);
}

void removed(const CommunicatorPin& entry) {
    Registry::process().remove(entry->handle.load(), entry.get());
}

CouncilRef council() {
    return agreement::join(agreement::test::make_id(), 2, 0, agreement::test::terms());
}

TEST(Councils, StayWhileAHookMayKnowThem) {
    const std::size_t before = Council::alive();
    const auto freed = [before] {
        councils::release_unknown();
        return Council::alive() == before;
    };
    CommunicatorPin entry = made(0);
    CommunicatorPin hook = Registry::process().find(entry->handle.load());
    councils::put(entry->council, council());
    Council* const read = hook->council.load();  // by a hook of another thread
    councils::leave(*entry.get());
    EXPECT_EQ(entry->council.load(), nullptr);
    EXPECT_FALSE(freed()) << "the communicator is known";
    removed(entry);
    entry = {};
    EXPECT_FALSE(freed()) << "the hook is not through";
    EXPECT_FALSE(read->open());
    read->leave();
    { const CommunicatorPin through = std::move(hook); }
    EXPECT_TRUE(eventually(freed));
}

TEST(Councils, AreFreedWhereTheEntryIsAnotherCommunicators) {
    const std::size_t before = Council::alive();
    {
        const CommunicatorPin entry = made(1);
        councils::put(entry->council, council());
        councils::put(entry->origin, council());
        councils::put(entry->parent, CouncilRef(entry->council.load()));
        councils::leave(*entry.get());
        removed(entry);
    }
    for (int i = 0; i < static_cast<int>(Registry::kCapacity); ++i) {  // every entry once more
        const CommunicatorPin next = made(2);
        removed(next);
    }
    EXPECT_TRUE(eventually([before] {
        councils::release_unknown();
        return Council::alive() == before;
    }));
}

TEST(Councils, OneThatIsTakenOutOfAPlaceIsTheTakers) {
    const std::size_t before = Council::alive();
    const CommunicatorPin entry = made(3);
    councils::put(entry->council, council());
    councils::put(entry->parent, councils::at(entry->council));
    {
        const CouncilRef parent = councils::take(entry->parent);
        EXPECT_EQ(parent.get(), entry->council.load());
        EXPECT_FALSE(councils::take(entry->parent));
        councils::put(entry->origin, councils::take(entry->council));
        councils::leave(*entry.get(), entry->origin);
        removed(entry);
    }
    EXPECT_GT(Council::alive(), before) << "the entry is pinned";
}

}  // namespace
}  // namespace deft
